// Where a daemon listens, for programs that start it: one line on stdout, and a file that can be waited for.
//
//   {"grpc":"127.0.0.1:40123","lanes":"127.0.0.1:40124"}
//
// The ports are the real ones, also where the system was asked to choose them (port 0).
#pragma once

#include <map>
#include <memory>
#include <string>

#include "common/base/status.h"

namespace lockstep::telemetry {

// Used by one thread.
class AddressFile {
 public:
  // Removes a file that a killed daemon left at `path`, so it is called before anything that takes long: a program that
  // waits for the file must not read addresses of the past. An empty path means no file. Errors name the path.
  static Result<std::unique_ptr<AddressFile>> Create(std::string path);
  // Removes the file, if it was announced here.
  ~AddressFile();
  AddressFile(const AddressFile&) = delete;
  AddressFile& operator=(const AddressFile&) = delete;

  // Prints the line, then writes the file, whole from the first moment that it is there. `addresses`: HOST:PORT
  // or a socket's path by name, all of them listened on by now; those that are empty are not, and are left out.
  Status Announce(std::map<std::string, std::string> addresses);

 private:
  explicit AddressFile(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  bool announced_ = false;
};

}  // namespace lockstep::telemetry
