// For tests: a CA in a directory of its own.
#pragma once

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "common/base/text.h"
#include "common/os/temp_dir.h"
#include "common/rpc/tls.h"

namespace lockstep::rpc {

class TestCa {
 public:
  // `sans`: as openssl writes them, "DNS:a,URI:b". An earlier file of the same name is replaced.
  TlsOptions Issue(const std::string& name, const std::string& sans, int days = 30) const {
    const std::string make = "deploy/tls/make-test-ca.sh";
    REQUIRE(std::system(Cat(make, " --days ", days, " ", dir_.path(), " ", name, "=", sans).c_str()) == 0);
    const std::string own = Cat(dir_.path(), "/", name);
    return {.cert = own + "/tls.crt", .key = own + "/tls.key", .ca = own + "/ca.crt", .server_name = ""};
  }
  TlsOptions Server() const { return Issue("server", "DNS:trainer-0,IP:127.0.0.1,URI:spiffe://test/agent"); }
  TlsOptions Client() const { return Issue("client", "URI:spiffe://test/receiver"); }

 private:
  const os::TempDir dir_;
};

}  // namespace lockstep::rpc
