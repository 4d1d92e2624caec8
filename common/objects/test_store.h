// A store for a test: a directory of its own; or a prefix of its own in the store that $LOCKSTEP_TEST_STORE names,
// where it does: tests/integration/test_s3.py runs whole suites so.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <memory>
#include <string>

#include "common/base/ids.h"
#include "common/base/text.h"
#include "common/objects/object_store.h"
#include "common/os/temp_dir.h"

namespace lockstep::objects {

class TestStore {
 public:
  TestStore() {
    const char* named = std::getenv("LOCKSTEP_TEST_STORE");
    in_directory_ = named == nullptr;
    std::string url = in_directory_ ? "file://" + directory_.path() : named;
    if (!in_directory_) url.insert(std::min(url.find('?'), url.size()), Cat("/", HexEncode(RandomBytes16())));
    auto opened = OpenObjectStore(url);
    INFO(opened.status().ToString());
    REQUIRE(opened.ok());
    store_ = *std::move(opened);
  }

  const std::shared_ptr<ObjectStore>& store() const { return store_; }
  ObjectStore* operator->() const { return store_.get(); }
  // Its path; empty: it is in no directory.
  std::string path() const { return in_directory_ ? directory_.path() : ""; }

 private:
  const os::TempDir directory_;
  bool in_directory_ = true;
  std::shared_ptr<ObjectStore> store_;
};

}  // namespace lockstep::objects
