// TlsSession: TLS 1.3 between two that share a secret, over a socket and without ever waiting; no certificates. It is
// the encrypted form of a LaneStream.
//
// The secret is an external pre-shared key (RFC 8446): its identity crosses in clear, it itself never, and each
// connection has keys of its own (psk_dhe_ke). Nothing is resumed, nothing sent early. The end of a connection is not
// authenticated: the reader knows from what was sent before whether it is whole.
#pragma once

#include <openssl/ssl.h>
#include <sys/uio.h>

#include <array>
#include <asio.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace lockstep::net {

// What both ends of one connection know.
using TlsSecret = std::array<uint8_t, 16>;

template <auto kFree>
struct OpenSslFree {
  void operator()(auto* object) const { kFree(object); }
};

// What the connections of one side have in common. Thread-safe.
class TlsContext {
 public:
  enum class Side { kConnects, kAccepts };

  // kInternal: OpenSSL lacks what is needed, or memory.
  static Result<std::shared_ptr<const TlsContext>> Create(Side side);

  SSL_CTX* get() const { return context_.get(); }
  const BIO_METHOD* bio() const { return bio_.get(); }

 private:
  TlsContext() = default;

  std::unique_ptr<SSL_CTX, OpenSslFree<SSL_CTX_free>> context_;
  std::unique_ptr<BIO_METHOD, OpenSslFree<BIO_meth_free>> bio_;
};

// One connection. Used by one coroutine at a time. After an error the socket is to be closed.
class TlsSession {
 public:
  // A handshake of more bytes than this is broken off.
  static constexpr size_t kMaxHandshakeBytes = 16 << 10;

  // The secret of the peer that calls itself `identity`; nothing: there is none.
  using FindSecret = std::function<std::optional<TlsSecret>(ByteView identity)>;

  // For the side of `context`. The socket outlives the session; both are connected.
  static Result<std::unique_ptr<TlsSession>> Connect(std::shared_ptr<const TlsContext> context,
                                                     asio::ip::tcp::socket& socket, Bytes identity, TlsSecret secret);
  static Result<std::unique_ptr<TlsSession>> Accept(std::shared_ptr<const TlsContext> context,
                                                    asio::ip::tcp::socket& socket, FindSecret find);

  // Goes on with the handshake; true: the peer has proved that it has the secret. kPermission: the peer does not have
  // it, or says so of this side; kProtocol: it does not speak such TLS, or says too much; kUnavailable: it closed.
  Result<bool> Handshake();

  // As those of burst.h. What was sent may lie here encrypted while unsent() says so: another SendNow, with nothing
  // perhaps, sends it. kCorrupt: something changed the bytes on their way.
  Result<size_t> SendNow(std::span<const iovec> pieces);
  Result<size_t> ReceiveNow(std::span<const iovec> pieces);
  bool unsent() const { return sent_ < out_.size(); }

 private:
  friend class TlsContext;

  TlsSession(std::shared_ptr<const TlsContext> context, asio::ip::tcp::socket& socket)
      : context_(std::move(context)), socket_(socket) {}
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

  const std::shared_ptr<const TlsContext> context_;
  asio::ip::tcp::socket& socket_;
  Bytes identity_;  // of the client
  TlsSecret secret_{};
  FindSecret find_;       // of the server
  bool unknown_ = false;  // it found nothing
  size_t handshake_left_ = kMaxHandshakeBytes;
  bool established_ = false;
  Status socket_status_;  // why the socket gives or takes no more
  Bytes out_;             // encrypted; the first `sent_` bytes are gone
  size_t sent_ = 0;
  Bytes gathered_;                                   // a record of several pieces, on its way to OpenSSL
  std::unique_ptr<SSL, OpenSslFree<SSL_free>> ssl_;  // last: it refers to the rest
};

}  // namespace lockstep::net
