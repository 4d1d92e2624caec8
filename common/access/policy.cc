#include "common/access/policy.h"

#include <algorithm>

#include "common/base/text.h"
#include "common/config/toml.h"

namespace lockstep::access {
namespace {

bool IsUri(std::string_view name) {
  return name.find("://") != std::string_view::npos;
}

// A DNS pattern matches no URI, because many parties may choose the end of a URI. A URI pattern matches no DNS name.
bool Matches(std::string_view pattern, std::string_view name) {
  if (pattern == "*") return true;
  if (IsUri(pattern) != IsUri(name)) return false;
  if (pattern.ends_with('*')) return name.starts_with(pattern.substr(0, pattern.size() - 1));
  if (pattern.starts_with('*')) return name.ends_with(pattern.substr(1));
  return name == pattern;
}

bool MatchesOneOf(std::string_view pattern, const std::vector<std::string>& names) {
  return std::ranges::any_of(names, [&](const std::string& name) { return Matches(pattern, name); });
}

bool IsPattern(std::string_view text) {
  const size_t star = text.find('*');
  if (text.empty() || (star != std::string_view::npos && text.find('*', star + 1) != std::string_view::npos)) {
    return false;
  }
  return star == std::string_view::npos || star == 0 || star + 1 == text.size();
}

}  // namespace

std::string PlainSerial(std::string_view hex) {
  std::string plain;
  for (const char c : hex) {
    if (c == ':' || (c == '0' && plain.empty())) continue;
    plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return plain;
}

// Reads one file's tables into a policy.
class PolicyReader {
 public:
  explicit PolicyReader(const std::string& path) : path_(path) {}

  Result<Policy> Read() {
    LS_ASSIGN_OR_RETURN(const toml::table file, config::ReadToml("tls-policy", path_));
    Policy policy;
    for (const auto& [key, node] : file) {
      const toml::array* rows = node.as_array();
      const bool denies = key == "deny";
      if ((key != "allow" && !denies) || rows == nullptr || !rows->is_homogeneous<toml::table>()) {
        return Wrong(node, Cat("'", CleanText(key.str(), 200),
                               "' is no table [[allow]] or [[deny]], which are all there may be"));
      }
      for (const toml::node& row : *rows) {
        if (denies) {
          LS_RETURN_IF_ERROR(ReadDenial(*row.as_table(), policy));
        } else {
          LS_ASSIGN_OR_RETURN(policy.grants_.emplace_back(), ReadGrant(*row.as_table()));
        }
      }
    }
    if (!policy.grants_.empty()) return policy;
    return Status(ErrorCode::kConfig, Cat(path_, ": has no [[allow]], so that no peer may do anything; add one"));
  }

 private:
  Status Wrong(const toml::node& where, const std::string& what) const {
    return {ErrorCode::kConfig, Cat(config::PlaceOf(path_, where), ": ", what)};
  }

  Result<std::string> Text(const toml::table& table, std::string_view key) const {
    if (const toml::node* node = table.get(key); node != nullptr && node->is_string()) return node->as_string()->get();
    return Wrong(table, Cat("'", key, "' is a text, which is needed here"));
  }

  Result<std::string> Name(const toml::table& table) const {
    LS_ASSIGN_OR_RETURN(const std::string name, Text(table, "name"));
    if (IsPattern(name)) return name;
    return Wrong(*table.get("name"), "name is a DNS name or URI, with one * at most, at its begin or end");
  }

  Status ReadDenial(const toml::table& table, Policy& policy) const {
    if (table.size() != 1) return Wrong(table, "[[deny]] has either a name or a serial");
    if (table.contains("name")) {
      LS_ASSIGN_OR_RETURN(policy.denied_names_.emplace_back(), Name(table));
      return OkStatus();
    }
    LS_ASSIGN_OR_RETURN(const std::string serial, Text(table, "serial"));
    const std::string plain = PlainSerial(serial);
    if (plain.empty() || plain.find_first_not_of("0123456789abcdef") != std::string::npos) {
      return Wrong(*table.get("serial"), "serial is hexadecimal, as 'openssl x509 -noout -serial' prints it");
    }
    policy.denied_serials_.push_back(plain);
    return OkStatus();
  }

  Result<Policy::Grant> ReadGrant(const toml::table& table) const {
    for (const auto& [key, node] : table) {
      if (key == "name" || key == "role" || key == "models") continue;
      return Wrong(node, Cat("unknown key '", CleanText(key.str(), 200), "'; there are name, role and models"));
    }
    Policy::Grant grant{};
    LS_ASSIGN_OR_RETURN(grant.name, Name(table));
    LS_ASSIGN_OR_RETURN(const std::string role, Text(table, "role"));
    const std::optional<Role> known = ParseRole(role);
    if (!known) return Wrong(*table.get("role"), "role is receiver, operator or observer");
    grant.role = *known;
    LS_RETURN_IF_ERROR(ReadModels(table, grant.models));
    return grant;
  }

  Status ReadModels(const toml::table& table, std::vector<std::string>& models) const {
    const toml::node* const node = table.get("models");
    if (node == nullptr) return OkStatus();
    const toml::array* const array = node->as_array();
    if (array == nullptr || !array->is_homogeneous<std::string>()) {
      return Wrong(*node, "models is an array of names, one at least; leave it out for all models");
    }
    for (const toml::node& model : *array) models.push_back(model.as_string()->get());
    return OkStatus();
  }

  const std::string& path_;
};

Result<Policy> Policy::Read(const std::string& path) {
  return PolicyReader(path).Read();
}

bool Policy::Denies(const std::vector<std::string>& names, const std::string& serial) const {
  if (std::ranges::count(denied_serials_, serial) > 0) return true;
  return std::ranges::any_of(denied_names_, [&](const std::string& pattern) { return MatchesOneOf(pattern, names); });
}

bool Policy::KnowsOneOf(const std::vector<std::string>& names) const {
  return std::ranges::any_of(grants_, [&](const Grant& grant) { return MatchesOneOf(grant.name, names); });
}

bool Policy::Allows(const std::vector<std::string>& names, Roles roles, const Scope& scope) const {
  return std::ranges::any_of(grants_, [&](const Grant& grant) {
    const bool covers = grant.models.empty() || scope.kind == Scope::Kind::kOwnPull ||
                        (scope.kind == Scope::Kind::kModel && std::ranges::count(grant.models, scope.model) > 0);
    return covers && roles.Has(grant.role) && MatchesOneOf(grant.name, names);
  });
}

}  // namespace lockstep::access
