#include "common/rpc/message_json.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>

#include <cctype>

#include "common/base/ids.h"
#include "common/base/text.h"

namespace lockstep::rpc {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Reads element `index` of a repeated field, or the field itself.
class FieldReader {
 public:
  FieldReader(const Message& message, const FieldDescriptor& field)
      : message_(message), field_(field), reflection_(*message.GetReflection()) {}

  Json Read() const {
    if (!field_.is_repeated()) return Value(0);
    Json array = Json::array();
    for (int i = 0; i < reflection_.FieldSize(message_, &field_); ++i) array.push_back(Value(i));
    return array;
  }

 private:
  template <typename T>
  T Get(T (Reflection::*one)(const Message&, const FieldDescriptor*) const,
        T (Reflection::*of_many)(const Message&, const FieldDescriptor*, int) const, int index) const {
    return field_.is_repeated() ? (reflection_.*of_many)(message_, &field_, index)
                                : (reflection_.*one)(message_, &field_);
  }

  const Message& Nested(int index) const {
    return field_.is_repeated() ? reflection_.GetRepeatedMessage(message_, &field_, index)
                                : reflection_.GetMessage(message_, &field_);
  }

  Json Value(int i) const {
    switch (field_.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return Get(&Reflection::GetInt32, &Reflection::GetRepeatedInt32, i);
      case FieldDescriptor::CPPTYPE_INT64:
        return Get(&Reflection::GetInt64, &Reflection::GetRepeatedInt64, i);
      case FieldDescriptor::CPPTYPE_UINT32:
        return Get(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32, i);
      case FieldDescriptor::CPPTYPE_UINT64:
        return Get(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64, i);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return Get(&Reflection::GetDouble, &Reflection::GetRepeatedDouble, i);
      case FieldDescriptor::CPPTYPE_FLOAT:
        return Get(&Reflection::GetFloat, &Reflection::GetRepeatedFloat, i);
      case FieldDescriptor::CPPTYPE_BOOL:
        return Get(&Reflection::GetBool, &Reflection::GetRepeatedBool, i);
      case FieldDescriptor::CPPTYPE_ENUM:
        return EnumText(*Get(&Reflection::GetEnum, &Reflection::GetRepeatedEnum, i));
      case FieldDescriptor::CPPTYPE_STRING: {
        const std::string text = Get(&Reflection::GetString, &Reflection::GetRepeatedString, i);
        return field_.type() == FieldDescriptor::TYPE_BYTES ? Json(Hex(text)) : Json(text);
      }
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return ToJson(Nested(i));
    }
    return nullptr;
  }

  const Message& message_;
  const FieldDescriptor& field_;
  const Reflection& reflection_;
};

}  // namespace

std::string Hex(std::string_view bytes) {
  return HexEncode({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

Json ToJson(const Message& message) {
  Json json = Json::object();
  const google::protobuf::Descriptor& descriptor = *message.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    json[field.name()] = FieldReader(message, field).Read();
  }
  return json;
}

Status FromJson(std::string_view json, google::protobuf::Message* message) {
  const auto parsed = google::protobuf::util::JsonStringToMessage({json.data(), json.size()}, message);
  return parsed.ok() ? OkStatus() : Status(ErrorCode::kProtocol, CleanText(parsed.ToString(), 256));
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string EnumText(const google::protobuf::EnumValueDescriptor& value) {
  // By convention the zero is PREFIX_UNSPECIFIED, which gives the prefix away.
  const std::string& zero = value.type()->value(0)->name();
  const std::string prefix = zero.substr(0, zero.size() - std::string_view("UNSPECIFIED").size());
  std::string text = value.name().starts_with(prefix) ? value.name().substr(prefix.size()) : value.name();
  for (char& c : text) c = static_cast<char>(std::tolower(c));
  return text;
}

}  // namespace lockstep::rpc
