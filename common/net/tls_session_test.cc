// Two sessions, each over a socket pair. The test holds the other ends, and sees, cuts and changes what crosses.
#include "common/net/tls_session.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "common/base/status_testing.h"
#include "common/net/burst.h"

namespace lockstep::net {
namespace {

using asio::ip::tcp;
using Side = TlsContext::Side;
using namespace std::literals;

const TlsSecret kSecret{'t', 'h', 'e', ' ', 's', 'e', 'c', 'r', 'e', 't', ' ', 'o', 'f', ' ', 't', '!'};
const std::string kIdentity = "pull 7, lane 0";

// One end of a connection.
class End {
 public:
  End() : socket_(context_) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    socket_.assign(tcp::v4(), ends[0]);
    wire_ = ends[1];
  }
  ~End() { ::close(wire_); }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  // What the session has sent so far.
  Bytes Taken() const {
    Bytes all;
    std::array<std::byte, 4096> some;
    for (ssize_t got; (got = ::recv(wire_, some.data(), some.size(), MSG_DONTWAIT)) > 0;) {
      AppendBytes(all, ByteView(some).first(static_cast<size_t>(got)));
    }
    return all;
  }
  void Give(ByteView bytes) const {
    REQUIRE(::send(wire_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  }
  void EndOfInput() const { ::shutdown(wire_, SHUT_WR); }

  std::unique_ptr<TlsSession> session;

 protected:
  asio::io_context context_;
  tcp::socket socket_;

 private:
  int wire_ = -1;
};

struct Connecting : End {
  explicit Connecting(TlsSecret secret = kSecret, const std::string& identity = kIdentity) {
    const ByteView name = AsBytes(std::string_view(identity));
    session = *TlsSession::Connect(*TlsContext::Create(Side::kConnects), socket_, {name.begin(), name.end()}, secret);
  }
};

struct Accepting : End {
  Accepting() {
    session = *TlsSession::Accept(*TlsContext::Create(Side::kAccepts), socket_, [](ByteView identity) {
      return AsText(identity) == kIdentity ? std::optional(kSecret) : std::nullopt;
    });
  }
};

// The first two flights; the client is through then, and what it sent last is returned.
Bytes ShakeButLast(Connecting& client, Accepting& server) {
  REQUIRE_FALSE(*client.session->Handshake());
  server.Give(client.Taken());
  REQUIRE_FALSE(*server.session->Handshake());
  client.Give(server.Taken());
  REQUIRE(*client.session->Handshake());
  return client.Taken();
}

void Shake(Connecting& client, Accepting& server) {
  server.Give(ShakeButLast(client, server));
  REQUIRE(*server.session->Handshake());
}

TEST_CASE("A peer that shares the secret is let in, and gets what is sent in whatever pieces, which no other can see") {
  Connecting client;
  Accepting server;
  Shake(client, server);
  std::mt19937 random(1);
  for (const size_t size : {0, 1, 72, 16'383, 16'384, 16'385, 60'000}) {
    INFO(size << " bytes");
    Bytes sent(size + 100'000);
    std::generate(sent.begin(), sent.end(), [&] { return static_cast<std::byte>(random()); });
    const ByteView view = sent;
    const std::array pieces{Piece(view.first(size)), Piece({}), Piece(view.subspan(size))};
    const std::string first(reinterpret_cast<const char*>(sent.data()), 64);
    REQUIRE(*server.session->SendNow(pieces) == sent.size());
    Bytes got;
    while (got.size() < sent.size()) {
      const Bytes crossing = server.Taken();
      CHECK(AsText(crossing).find(first) == std::string_view::npos);
      client.Give(crossing);
      REQUIRE(server.session->SendNow({}).ok());
      Bytes some(7'001);
      const iovec memory{some.data(), some.size()};
      for (size_t here = 1; here > 0;) {
        here = *client.session->ReceiveNow(std::array{memory});
        AppendBytes(got, ByteView(some).first(here));
      }
    }
    CHECK(got == sent);
    CHECK_FALSE(server.session->unsent());
  }
}

// A server of OpenSSL's own, which has a certificate and, if it may, the secret.
class ForeignServer {
 public:
  explicit ForeignServer(bool knows_secret) : context_(SSL_CTX_new(TLS_server_method())), ssl_(nullptr) {
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
    const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), X509_free);
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
    X509_set_pubkey(certificate.get(), key.get());
    REQUIRE(X509_sign(certificate.get(), key.get(), EVP_sha256()) > 0);
    REQUIRE(SSL_CTX_use_certificate(context_, certificate.get()) == 1);
    REQUIRE(SSL_CTX_use_PrivateKey(context_, key.get()) == 1);
    SSL_CTX_set_num_tickets(context_, 0);
    if (knows_secret) SSL_CTX_set_psk_find_session_callback(context_, FindSecret);
    ssl_ = SSL_new(context_);
    SSL_set_bio(ssl_, BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_accept_state(ssl_);
  }
  ~ForeignServer() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  ForeignServer(const ForeignServer&) = delete;
  ForeignServer& operator=(const ForeignServer&) = delete;

  // Goes on with the handshake, or what follows it.
  void Do(const Bytes& received) {
    BIO_write(SSL_get_rbio(ssl_), received.data(), static_cast<int>(received.size()));
    (void)SSL_do_handshake(ssl_);
    ERR_clear_error();
  }
  void AskForNewKeys() {
    REQUIRE(SSL_key_update(ssl_, SSL_KEY_UPDATE_REQUESTED) == 1);
    (void)SSL_do_handshake(ssl_);
  }
  Bytes Taken() {
    Bytes all(BIO_ctrl_pending(SSL_get_wbio(ssl_)));
    if (!all.empty()) BIO_read(SSL_get_wbio(ssl_), all.data(), static_cast<int>(all.size()));
    return all;
  }

 private:
  static int FindSecret(SSL* ssl, const unsigned char*, size_t, SSL_SESSION** session) {
    const unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
    *session = SSL_SESSION_new();
    SSL_SESSION_set1_master_key(*session, kSecret.data(), kSecret.size());
    SSL_SESSION_set_cipher(*session, SSL_CIPHER_find(ssl, aes_128_gcm_sha256));
    SSL_SESSION_set_protocol_version(*session, TLS1_3_VERSION);
    return 1;
  }

  SSL_CTX* const context_;
  SSL* ssl_;
};

TEST_CASE("A server that shows a certificate instead of the secret is not believed") {
  Connecting client;
  ForeignServer impostor(false);
  REQUIRE_FALSE(*client.session->Handshake());
  impostor.Do(client.Taken());
  client.Give(impostor.Taken());
  CHECK_THAT(client.session->Handshake(), FailsWith(ErrorCode::kProtocol, "certificate verify failed"));
}

TEST_CASE("A peer that asks for new keys, which could go on for ever, is refused") {
  Connecting client;
  ForeignServer server(true);
  REQUIRE_FALSE(*client.session->Handshake());
  server.Do(client.Taken());
  client.Give(server.Taken());
  REQUIRE(*client.session->Handshake());
  server.Do(client.Taken());
  server.AskForNewKeys();
  client.Give(server.Taken());
  std::array<std::byte, 8> some;
  const std::array memory{iovec{some.data(), some.size()}};
  (void)client.session->ReceiveNow(memory);
  CHECK_THAT(client.session->ReceiveNow(memory), FailsWith(ErrorCode::kProtocol, "after its end"));
}

TEST_CASE("The secret does not cross, and nothing is issued with which to come again") {
  Connecting client;
  Accepting server;
  REQUIRE_FALSE(*client.session->Handshake());
  const Bytes hello = client.Taken();
  CHECK(AsText(hello).find(kIdentity) != std::string_view::npos);
  CHECK(AsText(hello).find(AsText(AsBytes(kSecret))) == std::string_view::npos);
  server.Give(hello);
  REQUIRE_FALSE(*server.session->Handshake());
  client.Give(server.Taken());
  REQUIRE(*client.session->Handshake());
  server.Give(client.Taken());
  REQUIRE(*server.session->Handshake());
  CHECK(server.Taken().empty());
}

TEST_CASE("A peer with another secret, or an unknown name, is not let in, and both ends say so") {
  const bool named = GENERATE(true, false);
  Connecting client(named ? TlsSecret{1} : kSecret, named ? kIdentity : "pull 8");
  Accepting server;
  REQUIRE_FALSE(*client.session->Handshake());
  server.Give(client.Taken());
  CHECK_THAT(server.session->Handshake(),
             FailsWith(ErrorCode::kPermission, named ? "binder does not verify" : "no such secret is known here"));
  client.Give(server.Taken());
  CHECK_THAT(client.session->Handshake(), FailsWith(ErrorCode::kPermission, "TLS handshake: ", "alert"));
}

TEST_CASE("A handshake that ends after any of its bytes lets no peer in") {
  Connecting whole;
  REQUIRE_FALSE(*whole.session->Handshake());
  const Bytes hello = whole.Taken();
  for (size_t bytes = 0; bytes < hello.size(); ++bytes) {
    Accepting server;
    server.Give(ByteView(hello).first(bytes));
    const Result<bool> waiting = server.session->Handshake();
    REQUIRE((waiting.ok() && !*waiting));
    server.EndOfInput();
    CHECK_THAT(server.session->Handshake(), FailsWith(ErrorCode::kUnavailable, "peer closed"));
  }
  constexpr size_t kFinished = 5 + 36 + 16 + 1;  // in a record
  for (size_t bytes = 0; bytes < kFinished; ++bytes) {
    Connecting client;
    Accepting server;
    const Bytes last = ShakeButLast(client, server);
    REQUIRE(last.size() == kFinished);
    server.Give(ByteView(last).first(bytes));
    const Result<bool> waiting = server.session->Handshake();
    REQUIRE((waiting.ok() && !*waiting));
    server.EndOfInput();
    CHECK_THAT(server.session->Handshake(), FailsWith(ErrorCode::kUnavailable, "peer closed"));
  }
}

TEST_CASE("A recorded handshake, played again, lets no peer in") {
  Connecting client;
  Accepting server, again;
  REQUIRE_FALSE(*client.session->Handshake());
  const Bytes hello = client.Taken();
  server.Give(hello);
  REQUIRE_FALSE(*server.session->Handshake());
  client.Give(server.Taken());
  REQUIRE(*client.session->Handshake());
  const Bytes finished = client.Taken();
  again.Give(hello);
  REQUIRE_FALSE(*again.session->Handshake());
  again.Give(finished);
  CHECK_THAT(again.session->Handshake(), FailsWith(ErrorCode::kCorrupt, "TLS handshake: bytes were changed"));
}

TEST_CASE("Garbage and plaintext are refused by either side") {
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    Bytes garbage(600);
    std::generate(garbage.begin(), garbage.end(), [&] { return static_cast<std::byte>(random()); });
    if (i % 2 == 0) std::copy_n(AsBytes("\x16\x03\x01\x02\x00\x01"sv).begin(), 6, garbage.begin());
    if (i % 3 == 0) std::copy_n(AsBytes("LSLO\x02\x00"sv).begin(), 6, garbage.begin());
    Accepting server;
    server.Give(garbage);
    Result<bool> outcome = server.session->Handshake();
    server.EndOfInput();
    if (outcome.ok()) outcome = server.session->Handshake();
    CHECK_FALSE(outcome.ok());
    Connecting client;
    REQUIRE_FALSE(*client.session->Handshake());
    client.Give(garbage);
    outcome = client.session->Handshake();
    client.EndOfInput();
    if (outcome.ok()) outcome = client.session->Handshake();
    CHECK_FALSE(outcome.ok());
  }
  Accepting server;
  server.Give(AsBytes("GET / HTTP/1.1\r\n\r\n"sv));
  CHECK_THAT(server.session->Handshake(),
             FailsWith(ErrorCode::kProtocol, "TLS handshake: ", "does the peer speak it?"));
}

TEST_CASE("A handshake that is too long is broken off before it is kept") {
  Accepting server;
  // A hello that says it has 64 KiB, in records of 8.
  Bytes record(5 + 8192);
  std::copy_n(AsBytes("\x16\x03\x01\x20\x00\x01\x00\xff\xff"sv).begin(), 9, record.begin());
  Result<bool> outcome = false;
  for (int i = 0; i < 3 && outcome.ok(); ++i) {
    server.Give(record);
    outcome = server.session->Handshake();
    std::fill_n(record.begin() + 5, 4, std::byte{0});
  }
  CHECK_THAT(outcome, FailsWith(ErrorCode::kProtocol, "the peer says too much"));
}

TEST_CASE("What was changed on its way is not received") {
  Connecting client;
  Accepting server;
  Shake(client, server);
  REQUIRE(*server.session->SendNow(std::array{Piece(AsBytes("weights"sv))}) == 7);
  Bytes crossing = server.Taken();
  crossing[crossing.size() / 2] ^= std::byte{1};
  client.Give(crossing);
  Bytes got(7);
  CHECK_THAT(client.session->ReceiveNow(std::array{iovec{got.data(), got.size()}}),
             FailsWith(ErrorCode::kCorrupt, "TLS: bytes were changed on their way"));
}

}  // namespace
}  // namespace lockstep::net
