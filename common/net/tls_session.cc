#include "common/net/tls_session.h"

#include <openssl/err.h>

#include <algorithm>
#include <vector>

#include "common/base/text.h"
#include "common/net/burst.h"
#include "common/net/pem.h"

namespace lockstep::net {
namespace {

using asio::ip::tcp;

constexpr char kCipher[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherNumber[] = {0x13, 0x01};
constexpr char kGroup[] = "X25519";
constexpr size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
// So much is encrypted, then sent in one call, while it is in the cache.
constexpr size_t kBurstBytes = 16 * kRecordBytes;
constexpr size_t kBurstRoom = kBurstBytes + 2 * kRecordBytes;  // with what records add, and the last one
// What the client takes in one call; the server is sent little.
constexpr size_t kReadBytes = 8 * kRecordBytes;

std::string LastError() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  return reason != nullptr ? reason : "no reason given";
}

Status Unusable(std::string_view what) {
  return {ErrorCode::kInternal, Cat("TLS: ", what, ": ", LastError())};
}

// The secret as OpenSSL wants it: as if a session were resumed. Null: no memory.
SSL_SESSION* SessionOf(SSL* ssl, const TlsSecret& secret) {
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipherNumber);
  const bool made = session != nullptr && cipher != nullptr &&
                    SSL_SESSION_set1_master_key(session, secret.data(), secret.size()) == 1 &&
                    SSL_SESSION_set_cipher(session, cipher) == 1 &&
                    SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
  if (made) return session;
  SSL_SESSION_free(session);
  return nullptr;
}

// Takes pieces record by record.
class RecordReader {
 public:
  explicit RecordReader(std::span<const iovec> pieces) : pieces_(pieces) {}

  // The next record's bytes: where they are when they lie in one piece, else gathered in `memory`. Empty: all is taken.
  ByteView Next(Bytes& memory) {
    if (const ByteView rest = Rest(); rest.size() >= kRecordBytes) return Take(kRecordBytes);
    memory.clear();
    while (memory.size() < kRecordBytes && !Rest().empty()) {
      AppendBytes(memory, Take(std::min(Rest().size(), kRecordBytes - memory.size())));
    }
    return memory;
  }

 private:
  // Of the first piece that is not taken yet.
  ByteView Rest() {
    while (!pieces_.empty() && taken_ == pieces_.front().iov_len) {
      pieces_ = pieces_.subspan(1);
      taken_ = 0;
    }
    if (pieces_.empty()) return {};
    const iovec& piece = pieces_.front();
    return ByteView(static_cast<const std::byte*>(piece.iov_base), piece.iov_len).subspan(taken_);
  }
  ByteView Take(size_t bytes) {
    const ByteView taken = Rest().first(bytes);
    taken_ += bytes;
    return taken;
  }

  std::span<const iovec> pieces_;
  size_t taken_ = 0;  // of the first of them
};

}  // namespace

Status TlsContext::CreateContext(Side side) {
  bio_.reset(BIO_meth_new(BIO_TYPE_SOURCE_SINK, "lane"));
  BIO_METHOD* bio = bio_.get();
  const bool usable = bio != nullptr && BIO_meth_set_read(bio, TlsSession::ReadSocket) == 1 &&
                      BIO_meth_set_write(bio, TlsSession::WriteOut) == 1 &&
                      BIO_meth_set_ctrl(bio, TlsSession::Control) == 1;
  if (!usable) return Unusable("no way to sockets");
  context_.reset(SSL_CTX_new(side == Side::kAccepts ? TLS_server_method() : TLS_client_method()));
  SSL_CTX* context = context_.get();
  const bool fit = context != nullptr && SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
                   SSL_CTX_set_num_tickets(context, 0) == 1;
  if (!fit) return Unusable("TLS 1.3 is not there");
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
  SSL_CTX_set_read_ahead(context, 1);
  // No side changes keys or issues tickets; to be asked for new keys again and again would cost without end.
  SSL_CTX_set_msg_callback(context, [](int sent, int, int type, const void*, size_t, SSL* ssl, void*) {
    TlsSession& session = TlsSession::Of(ssl);
    if (sent != 0 || type != SSL3_RT_HANDSHAKE || !session.established_) return;
    session.socket_status_ = {ErrorCode::kProtocol, "TLS: the peer goes on with the handshake after its end"};
  });
  return OkStatus();
}

Result<std::shared_ptr<const TlsContext>> TlsContext::Create(Side side) {
  std::shared_ptr<TlsContext> made(new TlsContext);
  LS_RETURN_IF_ERROR(made->CreateContext(side));
  SSL_CTX* context = made->context_.get();
  if (SSL_CTX_set_ciphersuites(context, kCipher) != 1 || SSL_CTX_set1_groups_list(context, kGroup) != 1) {
    return Unusable(Cat(kCipher, " and ", kGroup, " are not there"));
  }
  SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  if (side == Side::kAccepts) {
    SSL_CTX_set_psk_find_session_callback(context, TlsSession::LookUpSecret);
  } else {
    SSL_CTX_set_psk_use_session_callback(context, TlsSession::UseSecret);
    // A server that shows a certificate instead of knowing the secret: no certificate is believed.
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_default_read_buffer_len(context, kReadBytes);
  }
  return std::shared_ptr<const TlsContext>(std::move(made));
}

Result<std::shared_ptr<const TlsContext>> TlsContext::Create(const std::string& cert, const std::string& key,
                                                             const std::string& ca) {
  std::shared_ptr<TlsContext> made(new TlsContext);
  LS_RETURN_IF_ERROR(made->CreateContext(Side::kAccepts));
  made->has_certificates_ = true;
  SSL_CTX* context = made->context_.get();
  const auto unusable = [](const char* option) {
    return Status(ErrorCode::kConfig, Cat(option, ": TLS cannot use it: ", LastError()));
  };
  ERR_clear_error();
  const std::vector<Certificate> own = CertificatesOf(cert);
  if (own.empty()) return Status(ErrorCode::kConfig, "tls-cert: there is no certificate in it");
  if (SSL_CTX_use_certificate(context, own[0].get()) != 1) return unusable("tls-cert");
  for (size_t i = 1; i < own.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(context, own[i].get()) != 1) return unusable("tls-cert");
  }
  const Key secret = PrivateKeyOf(key);
  if (secret == nullptr)
    return Status(ErrorCode::kConfig, "tls-key: there is no private key without a passphrase in it");
  if (SSL_CTX_use_PrivateKey(context, secret.get()) != 1) return unusable("tls-key");
  X509_STORE* trusted = SSL_CTX_get_cert_store(context);
  for (const Certificate& one : CertificatesOf(ca)) {
    if (X509_STORE_add_cert(trusted, one.get()) != 1 || SSL_CTX_add_client_CA(context, one.get()) != 1) {
      return unusable("tls-ca");
    }
  }
  X509_STORE_set_flags(trusted, X509_V_FLAG_PARTIAL_CHAIN);  // a CA need not be a root
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  const auto choose = [](SSL*, const unsigned char** chosen, unsigned char* size, const unsigned char* offered,
                         unsigned int bytes, void*) {
    static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
    auto* out = const_cast<unsigned char**>(chosen);
    const int found = SSL_select_next_proto(out, size, kHttp2, sizeof kHttp2, offered, bytes);
    return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
  };
  SSL_CTX_set_alpn_select_cb(context, choose, nullptr);
  return std::shared_ptr<const TlsContext>(std::move(made));
}

Result<std::unique_ptr<TlsSession>> TlsSession::Create(std::shared_ptr<const TlsContext> context, tcp::socket& socket) {
  std::unique_ptr<TlsSession> session(new TlsSession(std::move(context), socket));
  session->ssl_.reset(SSL_new(session->context_->get()));
  BIO* bio = session->ssl_ == nullptr ? nullptr : BIO_new(session->context_->bio());
  if (bio == nullptr) return Unusable("a connection");
  BIO_set_data(bio, session.get());
  BIO_set_init(bio, 1);
  SSL_set_bio(session->ssl_.get(), bio, bio);
  SSL_set_app_data(session->ssl_.get(), session.get());
  return session;
}

Result<std::unique_ptr<TlsSession>> TlsSession::Connect(std::shared_ptr<const TlsContext> context, tcp::socket& socket,
                                                        Bytes identity, TlsSecret secret) {
  LS_ASSIGN_OR_RETURN(auto session, Create(std::move(context), socket));
  session->identity_ = std::move(identity);
  session->secret_ = secret;
  SSL_set_connect_state(session->ssl_.get());
  return session;
}

Result<std::unique_ptr<TlsSession>> TlsSession::Accept(std::shared_ptr<const TlsContext> context, tcp::socket& socket,
                                                       FindSecret find) {
  LS_ASSIGN_OR_RETURN(auto session, Create(std::move(context), socket));
  session->find_ = std::move(find);
  SSL_set_accept_state(session->ssl_.get());
  return session;
}

int TlsSession::ReadSocket(BIO* bio, char* out, int bytes) {
  TlsSession& self = Of(bio);
  BIO_clear_retry_flags(bio);
  auto most = static_cast<size_t>(bytes);
  if (!self.established_) {
    most = std::min(most, self.handshake_left_);
    if (most == 0) self.socket_status_ = {ErrorCode::kProtocol, "TLS handshake: the peer says too much"};
  }
  if (!self.socket_status_.ok()) return -1;
  const Result<size_t> got = net::ReceiveNow(self.socket_, std::array{iovec{out, most}});
  if (!got.ok()) self.socket_status_ = got.status();
  if (!got.ok()) return -1;
  if (*got == 0) BIO_set_retry_read(bio);
  if (*got == 0) return -1;
  if (!self.established_) self.handshake_left_ -= *got;
  return static_cast<int>(*got);
}

int TlsSession::WriteOut(BIO* bio, const char* data, int bytes) {
  AppendBytes(Of(bio).out_, AsBytes(std::string_view(data, static_cast<size_t>(bytes))));
  return bytes;
}

long TlsSession::Control(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

int TlsSession::UseSecret(SSL* ssl, const EVP_MD*, const unsigned char** identity, size_t* bytes,
                          SSL_SESSION** session) {
  const TlsSession& self = Of(ssl);
  *identity = reinterpret_cast<const unsigned char*>(self.identity_.data());
  *bytes = self.identity_.size();
  *session = SessionOf(ssl, self.secret_);
  return *session != nullptr ? 1 : 0;
}

int TlsSession::LookUpSecret(SSL* ssl, const unsigned char* identity, size_t bytes, SSL_SESSION** session) {
  TlsSession& self = Of(ssl);
  const auto secret = self.find_({reinterpret_cast<const std::byte*>(identity), bytes});
  self.unknown_ = !secret.has_value();
  *session = secret ? SessionOf(ssl, *secret) : nullptr;
  return self.unknown_ || *session != nullptr ? 1 : 0;
}

// A peer that connects and leaves, such as a probe, has refused nothing.
Status TlsSession::ExplainLeaving(const Status& gone) const {
  if (gone.code() != ErrorCode::kUnavailable || handshake_left_ == kMaxCertificateHandshakeBytes) return gone;
  return {ErrorCode::kPermission,
          "TLS handshake: the peer left; its tls-ca may lack the CA of this daemon's "
          "certificate, or it calls a name that this certificate lacks"};
}

// OK when OpenSSL only wants more from the peer.
Status TlsSession::Explain(int outcome) {
  const int error = SSL_get_error(ssl_.get(), outcome);
  if (error == SSL_ERROR_WANT_READ) return OkStatus();
  (void)Flush();  // the alert that tells the peer
  const bool certificates = !established_ && context_->has_certificates();
  if (!socket_status_.ok()) return certificates ? ExplainLeaving(socket_status_) : socket_status_;
  if (error == SSL_ERROR_ZERO_RETURN) return {ErrorCode::kUnavailable, "read from peer: peer closed"};
  const unsigned long why = ERR_peek_last_error();
  const int reason = ERR_GET_REASON(why);
  const char* where = established_ ? "TLS: " : "TLS handshake: ";
  if (reason == SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC) {
    return {ErrorCode::kCorrupt, Cat(where, "bytes were changed on their way")};
  }
  const bool unverified = certificates && reason == SSL_R_CERTIFICATE_VERIFY_FAILED;
  const bool plaintext = reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST;
  const bool refused = reason == SSL_R_BINDER_DOES_NOT_VERIFY || reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE ||
                       reason > SSL_AD_REASON_OFFSET || unknown_ || unverified;
  if (!established_ && refused) {
    if (unknown_) return {ErrorCode::kPermission, Cat(where, "no such secret is known here")};
    if (!unverified) return {ErrorCode::kPermission, Cat(where, LastError())};
    return {ErrorCode::kPermission,
            Cat(where, "the peer's certificate is refused: ",
                X509_verify_cert_error_string(SSL_get_verify_result(ssl_.get())), "; is it of a CA in tls-ca?")};
  }
  if (certificates && plaintext) {
    return {ErrorCode::kProtocol, Cat(where, "the peer speaks plaintext; give it tls-cert, tls-key and tls-ca")};
  }
  return {ErrorCode::kProtocol, Cat(where, LastError(), "; does the peer speak it?")};
}

Result<bool> TlsSession::Handshake() {
  ERR_clear_error();
  const int outcome = SSL_do_handshake(ssl_.get());
  if (outcome != 1) LS_RETURN_IF_ERROR(Explain(outcome));
  LS_RETURN_IF_ERROR(Flush());
  established_ = outcome == 1;
  // As if a session were resumed is how a secret is used; a peer that got here without one has shown something else.
  if (established_ && !context_->has_certificates() && SSL_session_reused(ssl_.get()) != 1) {
    return Status(ErrorCode::kPermission, "TLS handshake: the peer did without the secret");
  }
  if (established_) find_ = nullptr;
  return established_;
}

const X509* TlsSession::certificate() const {
  return established_ && context_->has_certificates() ? SSL_get0_peer_certificate(ssl_.get()) : nullptr;
}

Status TlsSession::Flush() {
  if (!unsent()) return OkStatus();
  LS_ASSIGN_OR_RETURN(const size_t sent, net::SendNow(socket_, std::array{Piece(ByteView(out_).subspan(sent_))}));
  sent_ += sent;
  if (unsent()) return OkStatus();
  out_.clear();
  sent_ = 0;
  return OkStatus();
}

Status TlsSession::Encrypt(ByteView record) {
  size_t written = 0;
  const int outcome = SSL_write_ex(ssl_.get(), record.data(), record.size(), &written);
  if (outcome == 1) return OkStatus();
  LS_RETURN_IF_ERROR(Explain(outcome));
  return {ErrorCode::kProtocol, "TLS: the peer interrupts what it is sent"};
}

Result<size_t> TlsSession::SendNow(std::span<const iovec> pieces) {
  RecordReader reader(pieces);
  size_t taken = 0;
  ERR_clear_error();  // once: it costs, and what works leaves no error
  out_.reserve(pieces.empty() ? 0 : kBurstRoom);
  while (true) {
    LS_RETURN_IF_ERROR(Flush());
    if (unsent()) return taken;
    while (out_.size() < kBurstBytes) {
      const ByteView record = reader.Next(gathered_);
      if (record.empty()) break;
      LS_RETURN_IF_ERROR(Encrypt(record));
      taken += record.size();
    }
    if (!unsent()) return taken;
  }
}

Result<size_t> TlsSession::ReceiveNow(std::span<const iovec> pieces) {
  size_t received = 0;
  ERR_clear_error();
  for (const iovec& piece : pieces) {
    for (size_t filled = 0; filled < piece.iov_len;) {
      if (!socket_status_.ok()) return received > 0 ? Result<size_t>(received) : Result<size_t>(socket_status_);
      size_t got = 0;
      const int outcome =
          SSL_read_ex(ssl_.get(), static_cast<std::byte*>(piece.iov_base) + filled, piece.iov_len - filled, &got);
      if (outcome != 1) {
        const Status status = Explain(outcome);
        // What was received comes first; an error comes again.
        if (received > 0 || status.ok()) return received;
        return status;
      }
      filled += got;
      received += got;
    }
  }
  return received;
}

}  // namespace lockstep::net
