// Runs a test binary's cases; under Bazel it also writes $XML_OUTPUT_FILE, a JUnit report with one <testcase> per
// TEST_CASE. Catch2's own JUnit reporter counts sections instead, and leaves out cases that assert nothing.
//
// Catch2 2 cannot skip a case. One that cannot be tried here says WARN("skipped: why") and returns; the report has it
// as skipped, and tests/expected_skips.txt says whether it may be.
#define CATCH_CONFIG_RUNNER
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace {

class CaseReport : public Catch::TestEventListenerBase {
 public:
  using TestEventListenerBase::TestEventListenerBase;

  bool assertionEnded(const Catch::AssertionStats& stats) override {
    const Catch::AssertionResult& result = stats.assertionResult;
    if (result.getResultType() == Catch::ResultWas::Warning && Catch::startsWith(result.getMessage(), "skipped: ")) {
      skipped_ = result.getMessage();
    }
    if (!result.isOk()) {
      failures_ << result.getSourceInfo() << ": " << result.getExpressionInMacro() << ' ' << result.getMessage()
                << '\n';
    }
    return false;
  }

  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    cases_ << "<testcase name=\"" << Escaped(stats.testInfo.name) << "\">";
    if (stats.totals.testCases.failed > 0) {
      cases_ << "<failure>" << Escaped(failures_.str()) << "</failure>";
    } else if (!skipped_.empty()) {
      cases_ << "<skipped message=\"" << Escaped(skipped_) << "\"/>";
    }
    cases_ << "</testcase>\n";
    failures_.str("");
    skipped_.clear();
  }

  void testRunEnded(const Catch::TestRunStats&) override {
    if (const char* path = std::getenv("XML_OUTPUT_FILE"); path != nullptr) {
      std::ofstream(path) << "<testsuites><testsuite>\n" << cases_.str() << "</testsuite></testsuites>\n";
    }
  }

 private:
  static Catch::XmlEncode Escaped(const std::string& text) {
    return Catch::XmlEncode(text, Catch::XmlEncode::ForAttributes);
  }

  std::ostringstream failures_;  // of the case that runs
  std::string skipped_;          // why it was, if so
  std::ostringstream cases_;
};

CATCH_REGISTER_LISTENER(CaseReport)

}  // namespace

int main(int argc, char** argv) {
  Catch::Session session;
  // A filter that matches no case has failed.
  session.configData().warnings = Catch::WarnAbout::NoTests;
  return session.run(argc, argv);
}
