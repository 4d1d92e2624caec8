#include "common/objects/s3_url.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <ctime>
#include <map>

#include "common/base/text.h"

namespace lockstep::objects {
namespace {

// The URL's own words.
struct Written {
  std::string bucket;
  std::string prefix;
  std::map<std::string, std::string> settings;
};

Result<Written> ReadQuery(const std::string& url) {
  const auto wrong = [&](std::string_view why) {
    const std::string shown = WithoutPasswords(url);
    return Status(ErrorCode::kConfig, Cat("the URL ", CleanText(shown.substr(0, shown.find('?')), 200), " ", why));
  };
  std::string_view rest = std::string_view(url).substr(std::string_view("s3://").size());
  const std::string_view query = rest.find('?') == rest.npos ? "" : rest.substr(rest.find('?') + 1);
  rest = rest.substr(0, rest.find('?'));
  Written place{.bucket = std::string(rest.substr(0, rest.find('/'))), .prefix = {}, .settings = {}};
  if (rest.find('/') != rest.npos) place.prefix = rest.substr(rest.find('/') + 1);
  while (place.prefix.ends_with('/')) place.prefix.pop_back();
  const bool named = place.bucket.size() >= 3 && IsPlain(place.bucket) && place.bucket.find('/') == std::string::npos;
  if (!named) return wrong("names no bucket: s3://BUCKET/PREFIX");
  if (!IsPlain(place.prefix)) return wrong("has a prefix with other characters than A-Z a-z 0-9 - _ . ~ /");
  for (std::string_view left = query; !left.empty();) {
    const std::string_view part = left.substr(0, left.find('&'));
    left = left.size() == part.size() ? "" : left.substr(part.size() + 1);
    const std::string name(part.substr(0, part.find('=')));
    constexpr std::array kKnown = {"endpoint", "region", "style", "ca", "credentials", "profile"};
    if (std::ranges::find(kKnown, name) == kKnown.end() || part.find('=') == part.npos) {
      return wrong(
          Cat("sets \"", CleanText(name, 40), "\"; it may set endpoint, region, style, ca, credentials, profile"));
    }
    place.settings[name] = part.substr(part.find('=') + 1);
  }
  return place;
}

}  // namespace

std::string Environment(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return "";
}

std::optional<int64_t> UnixSeconds(const std::string& text) {
  std::tm time{};
  if (::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time) == nullptr) return std::nullopt;
  return ::timegm(&time);
}

bool IsPlain(std::string_view name) {
  return std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("-_.~/").find(static_cast<char>(c)) != std::string_view::npos;
  });
}

Result<S3Place> ParseS3Url(const std::string& url) {
  LS_ASSIGN_OR_RETURN(Written place, ReadQuery(url));
  const auto setting = [&](const char* name, std::initializer_list<const char*> variables,
                           const std::string& otherwise) {
    std::string value = place.settings[name].empty() ? Environment(variables) : place.settings[name];
    return value.empty() ? otherwise : value;
  };
  const std::string region = setting("region", {"AWS_REGION", "AWS_DEFAULT_REGION"}, "us-east-1");
  const std::string named = setting("endpoint", {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, "");
  std::string endpoint = named.empty() ? Cat("https://s3.", region, ".amazonaws.com") : named;
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const std::string style = setting("style", {}, named.empty() ? "virtual" : "path");
  if (style != "path" && style != "virtual") {
    return Status(ErrorCode::kConfig, Cat("style=", CleanText(style, 40), ": path or virtual is meant"));
  }
  if (!IsPlain(region)) return Status(ErrorCode::kConfig, Cat("region=", CleanText(region, 40), " is none"));
  const size_t host = endpoint.find("://");
  if (host == std::string::npos)
    return Status(ErrorCode::kConfig, Cat("endpoint=", CleanText(WithoutPasswords(endpoint), 200), " is no URL"));
  const std::string base = style == "path"
                               ? Cat(endpoint, "/", place.bucket)
                               : Cat(endpoint.substr(0, host + 3), place.bucket, ".", endpoint.substr(host + 3));
  const std::string prefix = place.prefix.empty() ? "" : place.prefix + "/";
  return S3Place{.base_url = base,
                 .prefix = prefix,
                 .region = region,
                 .ca_file = setting("ca", {"AWS_CA_BUNDLE"}, ""),
                 .credentials_file = place.settings["credentials"],
                 .profile = place.settings["profile"]};
}

}  // namespace lockstep::objects
