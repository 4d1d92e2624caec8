// Where an S3-compatible store is, and how it is reached: what a URL and the environment say. How names and times are
// written there.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace lockstep::objects {

struct S3Location {
  std::string base_url;  // of the bucket
  std::string prefix;    // empty, or ends with '/'
  std::string region;
  std::string ca_file;           // empty: the system's
  std::string credentials_file;  // empty, as the profile: s3_credentials.h says which
  std::string profile;
};

// s3://BUCKET[/PREFIX][?name=value&...]; in the query, each with the environment's variable in its place:
//   endpoint     http[s]://HOST[:PORT]; $AWS_ENDPOINT_URL_S3, $AWS_ENDPOINT_URL; else AWS of the region
//   region       $AWS_REGION, $AWS_DEFAULT_REGION; else us-east-1
//   style        path or virtual; else path with an endpoint, virtual of AWS
//   ca           PEM file; $AWS_CA_BUNDLE; else the system's
//   credentials  file, and profile in it: s3_credentials.h
// kConfig names what is wrong. REQUIRES `url` to begin with "s3://".
Result<S3Location> ParseS3Url(const std::string& url);

// Whether it has nothing that is escaped in a URL, and in what is signed.
bool IsPlain(std::string_view name);

// The first of these variables of the environment that has a value; empty: none has.
std::string Environment(std::initializer_list<const char*> names);

// Of "2025-03-01T12:00:00Z", with or without a fraction; nothing for anything else.
std::optional<int64_t> UnixSeconds(const std::string& text);

}  // namespace lockstep::objects
