#include "common/rpc/peer_certificate.h"

#include <openssl/bn.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string_view>

#include "common/base/mutex.h"
#include "common/base/text.h"
#include "common/net/pem.h"

namespace lockstep::rpc {
namespace {

// Connections that have ended, and are still found.
constexpr size_t kEndedKept = 512;

// Every process of a host sees the abstract names of sockets, and may take one: so none can be foretold.
constexpr std::string_view kNamePrefix = "lockstep-peer-";
constexpr std::string_view kScheme = "unix-abstract:lockstep-peer-";

std::string NewName() {
  std::random_device random;
  std::string name(kNamePrefix);
  for (int i = 0; i < 4; ++i) name += Cat(random(), "-");
  return name;
}

class Certificates {
 public:
  void Add(const std::string& name, PeerCertificate certificate) {
    MutexLock lock(mutex_);
    certificates_.emplace(name, std::move(certificate));
  }
  void End(const std::string& name) {
    MutexLock lock(mutex_);
    ended_.push_back(name);
    if (ended_.size() <= kEndedKept) return;
    certificates_.erase(ended_.front());
    ended_.pop_front();
  }
  std::optional<PeerCertificate> Find(const std::string& name) {
    MutexLock lock(mutex_);
    const auto found = certificates_.find(name);
    return found == certificates_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  Mutex mutex_;
  std::map<std::string, PeerCertificate> certificates_ LS_GUARDED_BY(mutex_);
  std::deque<std::string> ended_ LS_GUARDED_BY(mutex_);  // of them, as they ended
};

Certificates& All() {
  static Certificates& all = *new Certificates;
  return all;
}

std::string SerialOf(const X509& certificate) {
  const std::unique_ptr<BIGNUM, Freed<BN_free>> number(
      ASN1_INTEGER_to_BN(X509_get0_serialNumber(&certificate), nullptr));
  const std::unique_ptr<char, void (*)(char*)> hex(BN_bn2hex(number.get()), [](char* text) { OPENSSL_free(text); });
  return hex.get();
}

std::vector<std::string> NamesOf(const X509& certificate) {
  const std::unique_ptr<GENERAL_NAMES, Freed<GENERAL_NAMES_free>> all(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> names;
  for (const int type : {GEN_URI, GEN_DNS}) {
    for (int i = 0; i < sk_GENERAL_NAME_num(all.get()); ++i) {  // none of null
      const GENERAL_NAME* name = sk_GENERAL_NAME_value(all.get(), i);
      if (name->type != type) continue;
      const ASN1_IA5STRING* text = type == GEN_URI ? name->d.uniformResourceIdentifier : name->d.dNSName;
      names.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                         static_cast<size_t>(ASN1_STRING_length(text)));
    }
  }
  return names;
}

}  // namespace

PeerCertificate ReadPeerCertificate(const X509& certificate) {
  // A certificate whose end cannot be read is as if it had expired.
  const auto end = net::EndOf(certificate).value_or(std::chrono::system_clock::now());
  return {.names = NamesOf(certificate), .serial = SerialOf(certificate), .valid_until = end};
}

CertifiedPeer::CertifiedPeer(const PeerCertificate& certificate) : certificate_(certificate), name_(NewName()) {
  All().Add(name_, certificate);
}

CertifiedPeer::~CertifiedPeer() {
  All().End(name_);
}

Status CertifiedPeer::Name(int socket) const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name_.data(), name_.size());  // below 60 bytes, of 107
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name_.size());
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), size) == 0) return OkStatus();
  return ErrnoStatus(errno, "name a connection for gRPC");
}

bool HasCertificate(const std::string& peer) {
  return peer.starts_with(kScheme);
}

std::optional<PeerCertificate> CertificateOf(const std::string& peer) {
  if (!HasCertificate(peer)) return std::nullopt;
  return All().Find(peer.substr(kScheme.size() - kNamePrefix.size()));
}

}  // namespace lockstep::rpc
