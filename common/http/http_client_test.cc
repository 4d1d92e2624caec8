#include "common/http/http_client.h"

#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "common/base/status_testing.h"
#include "common/http/test_http_server.h"
#include "common/os/unique_fd.h"

namespace lockstep::http {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Server = TestHttpServer;

std::unique_ptr<Client> ClientOf(const std::string& url, size_t max_answer_bytes = 1 << 20) {
  auto client = Client::Create({.url = url, .token = "secret", .max_answer_bytes = max_answer_bytes});
  REQUIRE(client.ok());
  return *std::move(client);
}

Request Get(milliseconds timeout = milliseconds(60'000)) {
  return {.target = "/thing?of=it", .timeout = timeout};
}

// The code with which one GET of what `answer` answers ends.
ErrorCode CodeAfter(Server::Answer answer, size_t max_answer_bytes = 1 << 20) {
  Server server(std::move(answer));
  const auto got = ClientOf(server.url(), max_answer_bytes)->Send(Get());
  INFO(got.status().ToString());
  return got.status().code();
}

void WaitUntilStopped(const Server& server) {
  while (!server.stopping()) std::this_thread::sleep_for(milliseconds(5));
}

}  // namespace

TEST_CASE("A GET sends the path, the query and the key, and returns the status and the body") {
  Server server([](int connection) { Server::Reply(connection, "418 Teapot", "{\"a\": 1}"); });
  const auto answer = ClientOf(server.url() + "/base/")->Send(Get());
  REQUIRE(answer.ok());
  CHECK(answer->status == 418);
  CHECK(answer->body == "{\"a\": 1}");
  REQUIRE(server.requests().size() == 1);
  const std::string request = server.requests()[0];
  CHECK(request.starts_with("GET /base/thing?of=it HTTP/1.1\r\n"));
  CHECK(request.find("Authorization: Bearer secret\r\n") != std::string::npos);
}

TEST_CASE("Plaintext is spoken to no address beyond this host and the networks that are named") {
  Server server([](int connection) { Server::Reply(connection, "200 OK", ""); });
  const auto ask = [](const std::string& url, std::vector<std::string> networks) {
    const auto client = Client::Create({.url = url, .plain = *net::Networks::Parse(networks)});
    return (*client)->Send(Get(milliseconds(200))).status();
  };
  CHECK(ask(server.url(), {}).ok());
  CHECK_THAT(ask("http://192.0.2.7:9000", {}), FailsWith(ErrorCode::kPermission, "192.0.2.7"));
  CHECK_THAT(ask("http://[2001:db8::7]:9000", {"10.0.0.0/8"}), FailsWith(ErrorCode::kPermission, "2001:db8::7"));
  CHECK(ask("http://192.0.2.7:9000", {"192.0.2.0/24"}).code() == ErrorCode::kUnavailable);
  CHECK(ask("https://192.0.2.7:9000", {}).code() == ErrorCode::kUnavailable);
}

TEST_CASE("A POST sends its body as JSON, without asking first") {
  Server server([](int connection) { Server::Reply(connection, "200 OK", ""); });
  const std::string body = "{\"text\": \"" + std::string(5'000, 'x') + "\"}";
  const auto answer = ClientOf(server.url())->Send({.target = "/post", .json = body});
  REQUIRE(answer.ok());
  CHECK(answer->status == 200);
  CHECK(answer->body.empty());
  const std::string request = server.requests().at(0);
  CHECK(request.starts_with("POST /post HTTP/1.1\r\n"));
  CHECK(request.find("Content-Type: application/json\r\n") != std::string::npos);
  CHECK(request.find("Expect") == std::string::npos);
  CHECK(request.ends_with(body));
}

TEST_CASE("A chunked answer is put together") {
  Server server([](int connection) {
    Server::Write(connection, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    std::this_thread::sleep_for(milliseconds(20));
    Server::Write(connection, "4\r\ndefg\r\n0\r\n\r\n");
  });
  const auto answer = ClientOf(server.url())->Send(Get());
  REQUIRE(answer.ok());
  CHECK(answer->body == "abcdefg");
}

TEST_CASE("Redirects are answers, and not followed") {
  Server other([](int connection) { Server::Reply(connection, "200 OK", "elsewhere"); });
  Server server([&](int connection) {
    Server::Write(connection, Cat("HTTP/1.1 302 Found\r\nLocation: ", other.url(), "\r\nContent-Length: 0\r\n\r\n"));
  });
  const auto answer = ClientOf(server.url())->Send(Get());
  REQUIRE(answer.ok());
  CHECK(answer->status == 302);
  CHECK(other.requests().empty());
}

TEST_CASE("A server that cannot be reached has not seen the request, and the error says so") {
  std::string url;
  {
    url = Server([](int) {}).url();
  }
  const auto answer = ClientOf(url)->Send(Get());
  CHECK_THAT(answer, FailsWith(ErrorCode::kUnavailable, "GET " + url + "/thing?of=it"));
  CHECK(ClientOf("http://no-such-host.invalid:1")->Send(Get()).status().code() == ErrorCode::kUnavailable);
}

TEST_CASE("A server that does not speak TLS is not reached by https") {
  Server server([](int connection) { Server::Reply(connection, "200 OK", ""); });
  const std::string url = "https" + server.url().substr(4);
  CHECK(ClientOf(url)->Send(Get(milliseconds(500))).status().code() == ErrorCode::kUnavailable);
}

TEST_CASE("An answer that does not come in time is a failure, in time") {
  Server* running = nullptr;
  Server server([&](int) { WaitUntilStopped(*running); });
  running = &server;
  const auto begin = Clock::now();
  const auto answer = ClientOf(server.url())->Send(Get(milliseconds(150)));
  CHECK(answer.status().code() == ErrorCode::kDeadline);
  CHECK(Clock::now() - begin >= milliseconds(140));
  CHECK(Clock::now() - begin < milliseconds(30'000));  // the server would never answer
}

TEST_CASE("An answer that trickles is not given more time") {
  Server* running = nullptr;
  Server server([&](int connection) {
    Server::Write(connection, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n");
    while (!running->stopping()) {
      Server::Write(connection, "x");
      std::this_thread::sleep_for(milliseconds(10));
    }
  });
  running = &server;
  CHECK(ClientOf(server.url())->Send(Get(milliseconds(200))).status().code() == ErrorCode::kDeadline);
}

TEST_CASE("An answer that is longer than is taken is refused, whether it announces its length or not") {
  const std::string body(2'000, 'x');
  CHECK(CodeAfter([&](int c) { Server::Reply(c, "200 OK", body); }, 1'999) == ErrorCode::kResourceExhausted);
  CHECK(CodeAfter([&](int c) { Server::Write(c, "HTTP/1.1 200 OK\r\n\r\n" + body); }, 1'999) ==
        ErrorCode::kResourceExhausted);
  CHECK(CodeAfter([&](int c) { Server::Reply(c, "200 OK", body); }, 2'000) == ErrorCode::kOk);
}

TEST_CASE("What is not HTTP is a protocol error") {
  CHECK(CodeAfter([](int c) { Server::Write(c, "220 mail.example ESMTP\r\n"); }) == ErrorCode::kProtocol);
  CHECK(CodeAfter([](int c) { Server::Write(c, "HTTP/1.1 banana\r\n\r\n"); }) == ErrorCode::kProtocol);
}

TEST_CASE("A connection that ends before the answer does is no answer") {
  CHECK(CodeAfter([](int) {}) == ErrorCode::kAborted);
  CHECK(CodeAfter([](int c) { Server::Reset(c); }) == ErrorCode::kAborted);
  CHECK(CodeAfter([](int c) { Server::Write(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"); }) ==
        ErrorCode::kAborted);
  CHECK(CodeAfter([](int c) { Server::Write(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nhalf"); }) ==
        ErrorCode::kAborted);
}

TEST_CASE("A request is sent once, also over a connection that dies") {
  Server server([](int connection) {
    Server::Reply(connection, "200 OK", "");
    Server::Reset(connection);
  });
  const auto client = ClientOf(server.url());
  for (int call = 0; call < 3; ++call) (void)client->Send(Get());
  CHECK(server.requests().size() == 3);
}

TEST_CASE("A stop ends the call under way at once and refuses later ones, but for those without it") {
  Server* running = nullptr;
  std::atomic<bool> hang = true;
  Server server([&](int connection) {
    while (hang && !running->stopping()) std::this_thread::sleep_for(milliseconds(5));
    Server::Reply(connection, "200 OK", "bye");
  });
  running = &server;
  const auto client = ClientOf(server.url());
  std::stop_source stop;
  std::thread stopper([&] {
    while (server.requests().empty()) std::this_thread::sleep_for(milliseconds(5));
    stop.request_stop();
  });
  Request stopped = Get();
  stopped.stop = stop.get_token();
  const auto begin = Clock::now();
  CHECK(client->Send(stopped).status().code() == ErrorCode::kCancelled);
  CHECK(Clock::now() - begin < milliseconds(30'000));
  stopper.join();
  CHECK(client->Send(stopped).status().code() == ErrorCode::kCancelled);
  hang = false;
  const auto answer = client->Send(Get());
  REQUIRE(answer.ok());
  CHECK(answer->body == "bye");
}

TEST_CASE("A peer that hangs up a socket beside the call ends the call at once, and one that says something does not") {
  Server* running = nullptr;
  Server server([&](int connection) {
    std::this_thread::sleep_for(milliseconds(100));
    if (running->requests().size() > 1) WaitUntilStopped(*running);
    Server::Reply(connection, "200 OK", "bye");
  });
  running = &server;
  const auto client = ClientOf(server.url());
  int ends[2] = {-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const os::UniqueFd own(ends[0]);
  os::UniqueFd peer(ends[1]);
  Request request = Get();
  request.hang_ups = {own.get()};
  REQUIRE(::write(peer.get(), "x", 1) == 1);
  CHECK(client->Send(request).ok());
  std::thread leaves([&] {
    while (server.requests().size() < 2) std::this_thread::sleep_for(milliseconds(5));
    peer.Reset();
  });
  const auto begin = Clock::now();
  CHECK(client->Send(request).status().code() == ErrorCode::kCancelled);
  CHECK(Clock::now() - begin < milliseconds(30'000));
  leaves.join();
}

TEST_CASE("A body streams to the server, and an answer to its taker; an error of the taker ends the call") {
  const std::string long_body(3 << 20, 'y');
  Server server([&](int connection) {
    Server::Write(connection,
                  Cat("HTTP/1.1 200 OK\r\nETag: \"abc\"\r\nContent-Length: ", long_body.size(), "\r\n\r\n"));
    Server::Write(connection, long_body);
  });
  const auto client = ClientOf(server.url(), 100);
  std::string taken;
  Request put{.target = "/a/b", .method = "PUT", .headers = {"If-Match: x"}};
  put.body = AsBytes(std::string_view(long_body));
  put.take = [&](int, ByteView bytes) {
    taken += AsText(bytes);
    return OkStatus();
  };
  const auto answer = client->Send(put);
  INFO(answer.status().ToString());
  REQUIRE(answer.ok());
  CHECK(taken == long_body);
  CHECK(answer->body.empty());
  CHECK(answer->headers.at("etag") == "\"abc\"");
  const std::string request = server.requests().at(0);
  CHECK(request.starts_with("PUT /a/b HTTP/1.1\r\n"));
  CHECK(request.find("If-Match: x\r\n") != std::string::npos);
  CHECK(request.ends_with(long_body));
  put.take = [](int, ByteView) { return Status(ErrorCode::kCorrupt, "not what it was"); };
  CHECK_THAT(client->Send(put), FailsWith(ErrorCode::kCorrupt, "not what it was"));
}

TEST_CASE("A server that says nothing for longer than it may has failed") {
  Server* running = nullptr;
  Server server([&](int connection) {
    Server::Write(connection, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
    WaitUntilStopped(*running);
  });
  running = &server;
  Request stalled = Get(std::chrono::minutes(10));
  stalled.stall = std::chrono::seconds(1);
  CHECK(ClientOf(server.url())->Send(stalled).status().code() == ErrorCode::kDeadline);
}

TEST_CASE("Only plain http and https URLs are taken") {
  CHECK(*CheckUrl("http://127.0.0.1:30000") == "http://127.0.0.1:30000");
  CHECK(*CheckUrl("https://engine.example/prefix//") == "https://engine.example/prefix");
  CHECK(*CheckUrl("http://[::1]:8000/") == "http://[::1]:8000");
  for (const std::string url :
       {"", "http://", "127.0.0.1:30000", "ftp://host", "file:///etc/passwd", "http://user:key@host", "http://host?a=b",
        "http://host#part", "http://ho st", "http://host\r\nX: y", "http://host:99999", "HTTP://host"}) {
    INFO(url);
    CHECK(CheckUrl(url).status().code() == ErrorCode::kConfig);
  }
  CHECK(CheckUrl("http://" + std::string(5'000, 'x')).status().code() == ErrorCode::kConfig);
}

TEST_CASE("A key with a line break is refused, and not shown") {
  for (const std::string token : {"two\nlines", "a key", "k\xc3\xa9y"}) {
    const auto client = Client::Create({.url = "http://127.0.0.1:1", .token = token});
    CHECK(client.status().code() == ErrorCode::kConfig);
    CHECK(client.status().message().find(token) == std::string::npos);
  }
}

}  // namespace lockstep::http
