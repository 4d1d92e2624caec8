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
struct UrlParts {
  std::string bucket;
  std::string prefix;
  std::map<std::string, std::string> settings;
};

Result<UrlParts> ReadQuery(const std::string& url) {
  const auto wrong = [&](std::string_view why) {
    const std::string shown = WithoutPasswords(url);
    return Status(ErrorCode::kConfig, Cat("the URL ", CleanText(shown.substr(0, shown.find('?')), 200), " ", why));
  };
  std::string_view rest = std::string_view(url).substr(std::string_view("s3://").size());
  const std::string_view query = rest.find('?') == rest.npos ? "" : rest.substr(rest.find('?') + 1);
  rest = rest.substr(0, rest.find('?'));
  UrlParts parts{.bucket = std::string(rest.substr(0, rest.find('/'))), .prefix = {}, .settings = {}};
  if (rest.find('/') != rest.npos) parts.prefix = rest.substr(rest.find('/') + 1);
  while (parts.prefix.ends_with('/')) parts.prefix.pop_back();
  const bool named = parts.bucket.size() >= 3 && IsPlain(parts.bucket) && parts.bucket.find('/') == std::string::npos;
  if (!named) return wrong("names no bucket: s3://BUCKET/PREFIX");
  if (!IsPlain(parts.prefix)) return wrong("has a prefix with other characters than A-Z a-z 0-9 - _ . ~ /");
  for (std::string_view left = query; !left.empty();) {
    const std::string_view part = left.substr(0, left.find('&'));
    left = left.size() == part.size() ? "" : left.substr(part.size() + 1);
    const std::string name(part.substr(0, part.find('=')));
    constexpr std::array kKnown = {"endpoint", "region", "style", "ca", "credentials", "profile"};
    if (std::ranges::find(kKnown, name) == kKnown.end() || part.find('=') == part.npos) {
      return wrong(
          Cat("sets \"", CleanText(name, 40), "\"; it may set endpoint, region, style, ca, credentials, profile"));
    }
    parts.settings[name] = part.substr(part.find('=') + 1);
  }
  return parts;
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

Result<S3Location> ParseS3Url(const std::string& url) {
  LS_ASSIGN_OR_RETURN(UrlParts parts, ReadQuery(url));
  const auto setting = [&](const char* name, std::initializer_list<const char*> variables,
                           const std::string& otherwise) {
    std::string value = parts.settings[name].empty() ? Environment(variables) : parts.settings[name];
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
                               ? Cat(endpoint, "/", parts.bucket)
                               : Cat(endpoint.substr(0, host + 3), parts.bucket, ".", endpoint.substr(host + 3));
  const std::string prefix = parts.prefix.empty() ? "" : parts.prefix + "/";
  return S3Location{.base_url = base,
                    .prefix = prefix,
                    .region = region,
                    .ca_file = setting("ca", {"AWS_CA_BUNDLE"}, ""),
                    .credentials_file = parts.settings["credentials"],
                    .profile = parts.settings["profile"]};
}

}  // namespace lockstep::objects
