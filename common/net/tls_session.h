// TlsSession: TLS 1.3 over a socket and without ever waiting. It is the encrypted form of a PeerStream.
//
// The two ends of a lane share a secret, and have no certificates. The secret is an external pre-shared key (RFC 8446):
// its identity crosses in clear, the secret never, and each connection has keys of its own (psk_dhe_ke). A server of
// the control plane has a certificate, and asks for the peer's.
//
// No session is resumed, and nothing is sent early. The end of a connection is not authenticated: the reader knows from
// what was sent before whether it is whole.
#pragma once

#include <openssl/ssl.h>
#include <sys/uio.h>

#include <array>
#include <asio.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "common/base/bytes.h"
#include "common/base/freed.h"
#include "common/base/status.h"

namespace lockstep::net {

// What both ends of one connection know.
using TlsSecret = std::array<uint8_t, 16>;

// What the connections of one side have in common. Thread-safe.
class TlsContext {
 public:
  enum class Side { kConnects, kAccepts };

  // Of connections with a secret. kInternal: OpenSSL lacks what is needed, or memory.
  static Result<std::shared_ptr<const TlsContext>> Create(Side side);
  // Accepts peers whose certificates one of `ca` has signed, and speaks HTTP/2 with them. All are PEM: `cert` may have
  // those between it and its CA. kConfig: OpenSSL cannot use them.
  static Result<std::shared_ptr<const TlsContext>> Create(const std::string& cert, const std::string& key,
                                                          const std::string& ca);

  SSL_CTX* get() const { return context_.get(); }
  const BIO_METHOD* bio() const { return bio_.get(); }
  // Of both ends, in place of a secret.
  bool has_certificates() const { return has_certificates_; }

 private:
  TlsContext() = default;
  Status CreateContext(Side side);

  bool has_certificates_ = false;

  std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>> context_;
  std::unique_ptr<BIO_METHOD, Freed<BIO_meth_free>> bio_;
};

// One connection. Used by one thread at a time. After an error the socket is to be closed.
class TlsSession {
 public:
  // A handshake of more bytes than this is broken off: certificates take some thousand bytes, a chain more.
  static constexpr size_t kMaxHandshakeBytes = 16 << 10;
  static constexpr size_t kMaxCertificateHandshakeBytes = 64 << 10;

  // The secret of the peer that calls itself `identity`; nothing: there is none.
  using FindSecret = std::function<std::optional<TlsSecret>(ByteView identity)>;

  // For the side of `context`. The socket outlives the session, and is connected. `find`: null with certificates.
  static Result<std::unique_ptr<TlsSession>> Connect(std::shared_ptr<const TlsContext> context,
                                                     asio::ip::tcp::socket& socket, Bytes identity, TlsSecret secret);
  static Result<std::unique_ptr<TlsSession>> Accept(std::shared_ptr<const TlsContext> context,
                                                    asio::ip::tcp::socket& socket, FindSecret find);

  // Goes on with the handshake; true: the peer has proved that it has the secret, or its certificate's key.
  // kPermission: the peer has not, or says so of this side; kProtocol: it does not speak such TLS, or says too much;
  // kUnavailable: it closed.
  Result<bool> Handshake();

  // The peer's, which was verified; null before the handshake's end, and with a secret.
  const X509* certificate() const;

  // As those of burst.h. What was sent may lie here encrypted while unsent() says so: another SendNow, with nothing
  // perhaps, sends it. kCorrupt: something changed the bytes on their way.
  Result<size_t> SendNow(std::span<const iovec> pieces);
  Result<size_t> ReceiveNow(std::span<const iovec> pieces);
  bool unsent() const { return sent_ < out_.size(); }

 private:
  friend class TlsContext;

  TlsSession(std::shared_ptr<const TlsContext> context, asio::ip::tcp::socket& socket)
      : context_(std::move(context)),
        socket_(socket),
        handshake_left_(context_->has_certificates() ? kMaxCertificateHandshakeBytes : kMaxHandshakeBytes) {}
  static Result<std::unique_ptr<TlsSession>> Create(std::shared_ptr<const TlsContext> context,
                                                    asio::ip::tcp::socket& socket);
  static TlsSession& Of(BIO* bio) { return *static_cast<TlsSession*>(BIO_get_data(bio)); }
  static TlsSession& Of(const SSL* ssl) { return *static_cast<TlsSession*>(SSL_get_app_data(ssl)); }

  // Called by OpenSSL.
  static int ReadSocket(BIO* bio, char* out, int bytes);
  static int WriteOut(BIO* bio, const char* data, int bytes);
  static long Control(BIO* bio, int command, long number, void* pointer);
  static int UseSecret(SSL* ssl, const EVP_MD* hash, const unsigned char** identity, size_t* bytes,
                       SSL_SESSION** session);
  static int LookUpSecret(SSL* ssl, const unsigned char* identity, size_t bytes, SSL_SESSION** session);

  Status Flush();
  Status Encrypt(ByteView record);
  Status Explain(int outcome);
  Status ExplainLeaving(const Status& gone) const;

  const std::shared_ptr<const TlsContext> context_;
  asio::ip::tcp::socket& socket_;
  Bytes identity_;  // of the client
  TlsSecret secret_{};
  FindSecret find_;       // of the server
  bool unknown_ = false;  // it found nothing
  size_t handshake_left_;
  bool established_ = false;
  Status socket_status_;  // why the socket gives or takes no more
  Bytes out_;             // encrypted; the first `sent_` bytes are gone
  size_t sent_ = 0;
  Bytes gathered_;                             // a record of several pieces, on its way to OpenSSL
  std::unique_ptr<SSL, Freed<SSL_free>> ssl_;  // last: it refers to the rest
};

}  // namespace lockstep::net
