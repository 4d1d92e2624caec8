// main() of the benchmark programs: NAME [--quick].
#include <string_view>

#include "tests/bench/common/bench.h"

int main(int argc, char** argv) {
  lockstep::bench::Run(argc > 1 && std::string_view(argv[1]) == "--quick");
}
