// Runs a test binary's cases and, under Bazel, writes them as JUnit to $XML_OUTPUT_FILE so that each case is counted.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>

namespace {

// Re-runs nothing: one session, with the console report on stdout and JUnit in the file when Bazel asks for it.
int Run(int argc, char** argv) {
  Catch::Session session;
  const int bad_flags = session.applyCommandLine(argc, argv);
  if (bad_flags != 0) return bad_flags;
  const char* xml = std::getenv("XML_OUTPUT_FILE");
  if (xml != nullptr) {
    session.configData().reporterName = "junit";
    session.configData().outputFilename = xml;
  }
  const int failed = session.run();
  if (xml != nullptr && failed != 0) {
    std::ifstream report(xml);
    Catch::cout() << report.rdbuf();
  }
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  return Run(argc, argv);
}
