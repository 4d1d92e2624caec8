#include "ctl/daemon/receipts.h"

#include "common/base/ids.h"
#include "common/base/text.h"
#include "common/os/file.h"
#include "common/versionlog/keys.h"
#include "ctl/output/table.h"

namespace lockstep::ctl {
namespace {

constexpr uint64_t kMostFileBytes = 64 << 20;

Result<std::string> FromHex(const Json& object, const char* field) {
  const std::string hex = object.value(field, "");
  std::string bytes(hex.size() / 2, '\0');
  if (hex.size() % 2 != 0 || !HexDecode(hex, {reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()})) {
    return Status(ErrorCode::kBadData, Cat("\"", field, "\" is no text of hex digits"));
  }
  return bytes;
}

Result<v1::SignedReceipt> FromJson(const Json& object) {
  v1::SignedReceipt receipt;
  LS_ASSIGN_OR_RETURN(*receipt.mutable_receipt(), FromHex(object, "receipt"));
  for (const Json& given : object.value("signatures", Json::array())) {
    v1::LogSignature& signature = *receipt.add_signatures();
    LS_ASSIGN_OR_RETURN(*signature.mutable_key(), FromHex(given, "key"));
    LS_ASSIGN_OR_RETURN(*signature.mutable_signature(), FromHex(given, "signature"));
  }
  return receipt;
}

Status CheckSigned(const v1::SignedReceipt& receipt, const versionlog::TrustedKeys& trusted) {
  return trusted.Check(AsBytes(std::string_view(receipt.receipt())), receipt.signatures(),
                       versionlog::Signed::kReceipt);
}

}  // namespace

Result<std::vector<v1::SignedReceipt>> ReadReceipts(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, os::ReadFile(path, kMostFileBytes));
  v1::Receipt says;
  const Json all = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<v1::SignedReceipt> receipts;
  try {
    if (!all.is_array()) return Status(ErrorCode::kBadData, Cat(path, " has no JSON array of receipts"));
    for (const Json& object : all) {
      auto receipt = FromJson(object);
      if (!receipt.ok()) return receipt.status().WithContext(path);
      if (!says.ParseFromString(receipt->receipt()) || object.value("says", Json()) != ToJson(says)) {
        return Status(ErrorCode::kCorrupt, Cat(path, ": \"says\" of a receipt is not what was signed"));
      }
      receipts.push_back(*std::move(receipt));
    }
  } catch (const Json::exception& error) {
    return Status(ErrorCode::kBadData, Cat(path, ": ", CleanText(error.what(), 256)));
  }
  return receipts;
}

Status PrintReceipts(const std::vector<v1::SignedReceipt>& receipts, const std::string& keys, const Output& output) {
  versionlog::TrustedKeys trusted;
  if (!keys.empty()) {
    LS_ASSIGN_OR_RETURN(trusted, versionlog::TrustedKeys::Read(keys));
  }
  Status first;
  Json document = Json::array();
  Table table({"MODEL", "ENGINE", ">VERSION", "LABEL", "FROM", "TO", "DIGEST", "PLAN", "SIGNED"});
  for (const v1::SignedReceipt& one : receipts) {
    v1::Receipt receipt;
    if (!receipt.ParseFromString(one.receipt())) return {ErrorCode::kBadData, "what is to be a receipt is none"};
    const Status checked = CheckSigned(one, trusted);
    if (first.ok()) {
      first = checked.WithContext(Cat("the receipt of ", receipt.engine(), ", version ", receipt.version()));
    }
    Json object = ToJson(one);
    object["says"] = ToJson(receipt);
    if (!keys.empty()) object["checked"] = checked.ok();
    document.push_back(std::move(object));
    const auto digest = [](const std::string& bytes) { return bytes.empty() ? "-" : Hex(bytes).substr(0, 12); };
    const char* const is_signed = one.signatures().empty() ? "no"
                                  : keys.empty()           ? "not checked"
                                  : checked.ok()           ? "yes"
                                                           : "by another key";
    table.AddRow({receipt.model(), receipt.engine(), Cat(receipt.version()),
                  receipt.label().empty() ? "-" : receipt.label(), UtcText(receipt.from_unix_ns()),
                  receipt.ended() ? UtcText(receipt.to_unix_ns()) : "now", digest(receipt.manifest_digest()),
                  digest(receipt.plan_digest()), is_signed});
  }
  output.Print(document, table.ToString());
  return first;
}

}  // namespace lockstep::ctl
