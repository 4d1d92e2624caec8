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

// The secret that both ends of one connection share.
using TlsSecret = std::array<uint8_t, 16>;

// TlsContext: the settings that the connections of one side share. Thread-safe.
class TlsContext {
 public:
  enum class Side { kConnects, kAccepts };

  // A context for connections with a secret. kInternal: OpenSSL lacks an algorithm, or memory.
  static Result<std::shared_ptr<const TlsContext>> Create(Side side);
  // A context that accepts peers whose certificates one of `ca` has signed, and speaks HTTP/2 with them. The arguments
  // are PEM texts; `cert` may contain the certificates between it and its CA. kConfig: OpenSSL cannot use them.
  static Result<std::shared_ptr<const TlsContext>> Create(const std::string& cert, const std::string& key,
                                                          const std::string& ca);

  SSL_CTX* get() const { return context_.get(); }
  const BIO_METHOD* bio() const { return bio_.get(); }
  // Whether both ends have certificates, in place of a secret.
  bool has_certificates() const { return has_certificates_; }

 private:
  TlsContext() = default;
  Status CreateContext(Side side);

  bool has_certificates_ = false;

  std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>> context_;
  std::unique_ptr<BIO_METHOD, Freed<BIO_meth_free>> bio_;
};

// TlsSession: the TLS of one connection. Used by one thread at a time. After an error the caller must close the socket.
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

  // Goes on with the handshake. Returns true once the peer has proved that it has the secret, or its certificate's key;
  // false when the handshake must wait for the socket. kPermission: one side does not accept the other's proof.
  // kProtocol: the peer does not speak such TLS, or sends too much. kUnavailable: the peer closed.
  Result<bool> Handshake();

  // The peer's verified certificate; null before the handshake's end, and with a secret.
  const X509* certificate() const;

  // As the functions of burst.h. While unsent() is true, the session still has encrypted bytes that SendNow() counted
  // as sent: another SendNow(), even of nothing, sends them. kCorrupt: the bytes were changed on their way.
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
