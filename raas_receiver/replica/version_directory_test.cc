// What a version's directory has beside its tensors: assets, attachments, and the file that says which version it is.
#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/os/temp_dir.h"
#include "raas_receiver/replica/replica_fixture.h"

namespace lockstep::replica {
namespace {

namespace fs = std::filesystem;

}  // namespace

TEST_CASE("Assets are linked into every version, weights next to them are not") {
  ReplicaFixture fixture;
  const os::TempDir assets;
  for (const char* name :
       {"config.json", "tokenizer.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
        "pytorch_model.bin", ".hidden", "adapter_config.json", "adapter_model.safetensors", "tf_model.h5",
        "flax_model.msgpack", "model.ckpt.index", "model.onnx", "model.onnx_data"}) {
    std::ofstream(assets.File(name)) << name;
  }
  fixture.options.assets = assets.path();
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  CHECK(fixture.FileNames("current") ==
        std::set<std::string>{"config.json", "tokenizer.json", "model.safetensors", "lockstep.json"});
  std::ofstream(assets.File("generation_config.json")) << "{}";
  fixture.Reopen();
  CHECK(fs::exists(fixture.ModelPath("current/generation_config.json")));
}

TEST_CASE("Assets in directories are linked as they lie there, and links to directories are not followed") {
  ReplicaFixture fixture;
  fixture.model = TestModel(1, 20'000, {{"notes.json", "{}"}});
  const os::TempDir assets;
  const os::TempDir elsewhere;
  std::ofstream(elsewhere.File("secret")) << "elsewhere";
  const auto add = [&](const std::string& name) {
    fs::create_directories(fs::path(assets.File(name)).parent_path());
    std::ofstream(assets.File(name)) << name;
  };
  for (const char* name :
       {"1_Pooling/config.json", "a/b/c.txt", "a/model.safetensors", ".git/config", "notes.json/taken"}) {
    add(name);
  }
  fs::create_directory_symlink(elsewhere.path(), assets.File("out"));
  fs::create_directory_symlink(assets.path(), assets.File("a/circle"));
  fixture.options.assets = assets.path();
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  CHECK(fixture.FileNames("current") ==
        std::set<std::string>{"1_Pooling", "a", "lockstep.json", "model.safetensors", "notes.json"});
  CHECK(fixture.FileNames("current/a") == std::set<std::string>{"b"});
  CHECK(fixture.FileText(fixture.ModelPath("current/1_Pooling/config.json")) == "1_Pooling/config.json");
  CHECK(fixture.FileText(fixture.ModelPath("current/a/b/c.txt")) == "a/b/c.txt");
  CHECK(fixture.FileText(fixture.ModelPath("current/notes.json")) == "{}");
  add("a/b/later");
  fixture.Reopen();
  CHECK(fixture.FileNames("current/a/b") == std::set<std::string>{"c.txt", "later"});
}

TEST_CASE("A directory of assets that goes too deep, or has too many, is refused by name") {
  ReplicaFixture fixture;
  const os::TempDir assets;
  fixture.options.assets = assets.path();
  fixture.Open();
  SECTION("too deep") {
    fs::create_directories(assets.File("1/2/3/4/5/6/7/8/9"));
  }
  SECTION("too many") {
    for (int i = 0; i <= 10'000; ++i) std::ofstream(assets.File(std::to_string(i)));
  }
  const Version version = fixture.model.Advance();
  CHECK_THAT(ReplicaFixture::TryFull(fixture.pair(), fixture.model, version),
             FailsWith(ErrorCode::kResourceExhausted, assets.path()));
}

TEST_CASE("Attachments are files of every version, in the place of assets of their name") {
  ReplicaFixture fixture;
  fixture.model = TestModel(1, 20'000, {{"notes.json", "{}"}, {"empty.txt", ""}});
  const os::TempDir assets;
  for (const char* name : {"config.json", "notes.json"}) std::ofstream(assets.File(name)) << "asset";
  fixture.options.assets = assets.path();
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  fixture.PullDelta(fixture.model.Advance());
  fixture.CheckCurrent(2);
  fixture.Reopen();
  fixture.CheckCurrent(2);
  CHECK(fixture.FileNames("v1") ==
        std::set<std::string>{"config.json", "empty.txt", "model.safetensors", "notes.json", "lockstep.json"});
  CHECK(fixture.FileNames("v2") == fixture.FileNames("v1"));
  CHECK(fixture.FileText(fixture.ModelPath("v1/notes.json")) == "{}");
  CHECK(fixture.FileText(fixture.ModelPath("v1/config.json")) == "asset");
  CHECK(fixture.FileText(assets.File("notes.json")) == "asset");
}

TEST_CASE("A version's directory says which version it is and what its trainer calls it, also after a restart") {
  ReplicaFixture fixture;
  fixture.Open();
  const Version version = fixture.model.Advance();
  REQUIRE(fixture.pair().BeginFull(fixture.model.layout()).ok());
  for (BlockIndex block = 0; block < fixture.model.layout()->block_count(); ++block) {
    const ByteView bytes = fixture.model.block_of(version, block);
    std::copy(bytes.begin(), bytes.end(), fixture.pair().target_block(block).begin());
  }
  const model::Manifest manifest = fixture.model.manifest(version);
  REQUIRE(fixture.pair().Commit(manifest, 5, {}, "step \"7\"").ok());
  const std::string said =
      Cat(R"({"run":")", ToHex(manifest.held.run), R"(","version":1,"label":"step \"7\"","committed_unix_ns":5,)",
          R"("manifest_digest":")", ToHex(manifest.digest), "\"}\n");
  CHECK(fixture.FileText(fixture.ModelPath("current/lockstep.json")) == said);
  fs::remove(fixture.ModelPath("v1/lockstep.json"));
  fixture.Reopen();
  CHECK(fixture.pair().current().label == "step \"7\"");
  CHECK(fixture.FileText(fixture.ModelPath("current/lockstep.json")) == said);
}

TEST_CASE("A layout with an adapter's configuration is published as an adapter directory") {
  ReplicaFixture fixture;
  fixture.model = TestModel(1, 20'000, {{"adapter_config.json", R"({"r": 8})"}});
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  CHECK(fixture.FileNames("current") ==
        std::set<std::string>{"adapter_config.json", "adapter_model.safetensors", "lockstep.json"});
  fixture.PullDelta(fixture.model.Advance());
  REQUIRE(fixture.pair().SwitchToOther().ok());
  fixture.Reopen();
  fixture.CheckCurrent(1);
  TestModel plain(5);
  plain.Advance();
  fixture.PullFull(1, plain);
  CHECK(fixture.FileNames("current") == std::set<std::string>{"model.safetensors", "lockstep.json"});
}

TEST_CASE("Damaged attachments are found by a verification and written again at start") {
  ReplicaFixture fixture;
  fixture.model = TestModel(1, 20'000, {{"adapter_config.json", R"({"r": 8})"}});
  fixture.Open();
  fixture.PullFull(fixture.model.Advance());
  fixture.PullDelta(fixture.model.Advance());
  const std::string path = fixture.ModelPath("v2/adapter_config.json");
  const auto damage = GENERATE(0, 1, 2, 3);
  if (damage == 0) fs::remove(path);
  if (damage == 1) std::ofstream(path) << R"({"r": 9})";
  if (damage == 2) std::ofstream(path) << std::string(model::kMaxAttachmentBytes + 1, 'x');
  if (damage == 3) {
    fs::remove(path);
    std::ofstream(fixture.root.File("elsewhere")) << R"({"r": 8})";
    fs::create_symlink(fixture.root.File("elsewhere"), path);
  }
  const auto report = fixture.pair().Verify();
  REQUIRE(report.status().code() == ErrorCode::kCorrupt);
  CHECK(report.status().message().find(path) == 0);
  fixture.Reopen();
  fixture.CheckCurrent(2);
  CHECK_FALSE(fs::is_symlink(path));
  CHECK(fixture.pair().previous().held == fixture.model.held(1));
  CHECK(fixture.Directories() == std::set<std::string>{"v1", "v2"});
}

}  // namespace lockstep::replica
