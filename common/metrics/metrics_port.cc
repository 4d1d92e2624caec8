#include "common/metrics/metrics_port.h"

#include <algorithm>
#include <asio.hpp>
#include <chrono>
#include <string_view>

#include "common/base/text.h"
#include "common/telemetry/log.h"

namespace lockstep::metrics {
namespace {

using Connection = asio::ip::tcp::socket;

// A request of Prometheus' is some hundred bytes.
constexpr size_t kMaxRequestBytes = 8 << 10;
constexpr std::chrono::seconds kTime{10};  // for a request, and for its answer
constexpr net::ConnectionSlots::Limits kConnections{.all = 32, .per_address = 16};

// Between two pages, the time that the first took so many times: pages take a twentieth of a core at most.
constexpr int kRest = 19;
constexpr std::chrono::seconds kLongestRest{5};

// The last page, and the next one when it is due. Used by the port's thread.
class KeptPage {
 public:
  explicit KeptPage(MetricsPort::Page make) : make_(std::move(make)) {}

  const std::string& Get() {
    const Clock::time_point begin = Clock::now();
    if (begin < due_) return page_;
    page_ = make_();
    const Clock::time_point end = Clock::now();
    due_ = end + std::min<Clock::duration>(kRest * (end - begin), kLongestRest);
    return page_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  const MetricsPort::Page make_;
  std::string page_;
  Clock::time_point due_ = Clock::time_point::min();
};

std::string Response(std::string_view status, std::string_view type, std::string_view body, bool with_body) {
  return Cat("HTTP/1.1 ", status, "\r\nContent-Type: ", type, "\r\nContent-Length: ", body.size(),
             "\r\nConnection: close\r\n\r\n", with_body ? body : "");
}

std::string Refuse(std::string_view status) {
  return Response(status, "text/plain", Cat(status, "; ask for GET /metrics\n"), true);
}

// To a request's first line, "GET /metrics HTTP/1.1".
std::string AnswerTo(std::string_view line, const MetricsPort::Page& page) {
  const size_t end = line.find(' ');
  const std::string_view method = line.substr(0, end);
  const std::string_view rest = end == std::string_view::npos ? "" : line.substr(end + 1);
  const std::string_view path = rest.substr(0, rest.find_first_of(" ?"));
  if (rest.find(" HTTP/1.") == std::string_view::npos) return Refuse("400 Bad Request");
  if (method != "GET" && method != "HEAD") return Refuse("405 Method Not Allowed");
  if (path != "/metrics") return Refuse("404 Not Found");
  return Response("200 OK", "text/plain; version=0.0.4; charset=utf-8", page(), method == "GET");
}

// Ends what is done with the connection after a while.
asio::awaitable<void> EndAfter(std::shared_ptr<Connection> connection, std::shared_ptr<asio::steady_timer> timer) {
  asio::error_code ended;
  timer->expires_after(kTime);
  co_await timer->async_wait(asio::redirect_error(asio::use_awaitable, ended));
  asio::error_code ignored;
  if (!ended) connection->close(ignored);
}

asio::awaitable<void> Answer(std::shared_ptr<Connection> connection, net::ConnectionSlots::Slot,
                             const MetricsPort::Page& page) {
  const auto timer = std::make_shared<asio::steady_timer>(connection->get_executor());
  net::Spawn(connection->get_executor(), EndAfter(connection, timer));
  asio::error_code failed;
  auto token = asio::redirect_error(asio::use_awaitable, failed);
  std::string request;
  co_await asio::async_read_until(*connection, asio::dynamic_buffer(request, kMaxRequestBytes), "\r\n\r\n", token);
  if (!failed) {
    const std::string answer = AnswerTo(std::string_view(request).substr(0, request.find("\r\n")), page);
    co_await asio::async_write(*connection, asio::buffer(answer), token);
  }
  timer->cancel();
  connection->shutdown(asio::socket_base::shutdown_send, failed);
  connection->close(failed);
}

}  // namespace

Result<std::unique_ptr<MetricsPort>> MetricsPort::Create(const std::string& address, Page page) {
  std::unique_ptr<MetricsPort> port(
      new MetricsPort([kept = std::make_shared<KeptPage>(std::move(page))] { return kept->Get(); }));
  LS_ASSIGN_OR_RETURN(port->port_, rpc::TcpPort::Listen(port->io_.context(), "--metrics-listen", address));
  port->port_->Start([self = port.get()](Connection connection, int) { self->Serve(std::move(connection)); });
  return port;
}

MetricsPort::MetricsPort(Page page)
    : page_(std::move(page)), connection_slots_(kConnections), io_(1, [](std::string_view what) {
        telemetry::LogError("port_exception", {ErrorCode::kInternal, std::string(what)});
      }) {}

MetricsPort::~MetricsPort() {
  port_.reset();
  io_.Stop();
}

void MetricsPort::Serve(Connection connection) {
  asio::error_code gone;
  const asio::ip::address address = connection.remote_endpoint(gone).address();
  if (gone) return;
  const auto shared = std::make_shared<Connection>(std::move(connection));
  net::ConnectionSlots::Slot slot = connection_slots_.Enter(address, [weak = std::weak_ptr(shared)] {
    asio::error_code ignored;
    if (const auto displaced = weak.lock()) displaced->close(ignored);
  });
  net::Spawn(shared->get_executor(), Answer(shared, std::move(slot), page_));
}

}  // namespace lockstep::metrics
