#include "ctl/invocation.h"

#include <CLI/CLI.hpp>
#include <ostream>

#include "common/base/text.h"
#include "common/base/version.h"
#include "common/net/host_port.h"
#include "common/telemetry/build_info.h"
#include "ctl/daemon/environment.h"

namespace lockstep::ctl {
namespace {

// Values as CLI11 leaves them, before they are given their meaning.
struct Words {
  std::string agent;
  std::vector<std::string> receivers;
  std::string health_service;
  int64_t timeout_ms = 0;
  PlanOptions plan;
  TimelineOptions timeline;
};

bool OnlyReceiversDo(Command command) {
  return command == Command::kPull || command == Command::kRollback;
}

void AddModel(CLI::App& command, DaemonOptions& options) {
  command.add_option("model,--model", options.model, "The model; may be left out when there is only one");
}

CLI::App* AddCommand(CLI::App& app, DaemonOptions& options, Command command, const char* name, const char* about) {
  CLI::App* added = app.add_subcommand(name, about);
  added->callback([&options, command] { options.command = command; });
  added->fallthrough();  // global options may also stand behind the command
  return added;
}

void AddDaemonCommands(CLI::App& app, DaemonOptions& options, Words& words) {
  AddCommand(app, options, Command::kStatus, "status", "Everything the daemon knows about its models");
  AddCommand(app, options, Command::kVersions, "versions", "Versions and deltas that the daemon holds");
  CLI::App* pull = AddCommand(app, options, Command::kPull, "pull", "Have a receiver pull the newest version now");
  AddModel(*pull, options);
  pull->add_flag("--full", options.force_full, "Pull every block, whatever the receiver holds");
  AddModel(*AddCommand(app, options, Command::kVerify, "verify",
                       "Recompute digests from memory; of a receiver, also compare with the agent's manifest"),
           options);
  CLI::App* watch = AddCommand(app, options, Command::kWatch, "watch", "Print each new version or sync as it comes");
  AddModel(*watch, options);
  watch->add_option("--count", options.count, "End after so many")->type_name("N");
  AddModel(*AddCommand(app, options, Command::kLayout, "layout", "The model's tensors"), options);
  AddModel(*AddCommand(app, options, Command::kRollback, "rollback",
                       "Make a receiver's previous version current, until the next pull"),
           options);
  AddCommand(app, options, Command::kHealth, "health", "Exit 0 when the daemon is serving, 69 when not")
      ->add_option("service,--service", words.health_service, "liveness, readiness, or a service's full name");
}

void AddCommands(CLI::App& app, Invocation& invocation, Words& words) {
  AddDaemonCommands(app, invocation.daemon, words);
  CLI::App* plan = app.add_subcommand("plan", "Who copies what, from a trainer's shape or its sheets; asks no daemon");
  plan->fallthrough();
  AddPlanOptions(*plan, words.plan);
  plan->callback([&invocation, &words] { invocation.plan = words.plan; });
  CLI::App* timeline = app.add_subcommand("timeline", "What daemons did for a version, when: a table, and a trace");
  timeline->fallthrough();
  AddTimelineOptions(*timeline, words.timeline);
  timeline->callback([&invocation, &words] { invocation.timeline = words.timeline; });
}

Status FinishPlan(const Words& words, PlanOptions& plan) {
  if (words.agent.empty() && words.receivers.empty()) return FinishPlanOptions(plan);
  return {ErrorCode::kUsage, "plan asks no daemon: leave --agent and --receiver out"};
}

// Decides which daemon the command goes to, and where that is.
Status ChooseDaemon(const Words& words, DaemonOptions& options) {
  const bool verify = options.command == Command::kVerify;
  if (!words.agent.empty() && !words.receivers.empty() && !verify) {
    return {ErrorCode::kUsage, "--agent and --receiver exclude each other, except for verify and timeline"};
  }
  if (words.receivers.size() > 1) return {ErrorCode::kUsage, "only timeline takes several --receiver"};
  if (OnlyReceiversDo(options.command) && !words.agent.empty()) {
    return {ErrorCode::kUsage, "only receivers can do that: use --receiver HOST:PORT"};
  }
  const std::string agent = words.agent.empty() ? Environment(kAgentVariable) : words.agent;
  const std::string receiver = words.receivers.empty() ? Environment(kReceiverVariable) : words.receivers[0];
  const bool to_receiver = OnlyReceiversDo(options.command) || !words.receivers.empty() ||
                           (words.agent.empty() && agent.empty() && !receiver.empty());
  options.daemon = to_receiver ? Daemon::kReceiver : Daemon::kAgent;
  options.address =
      to_receiver ? (receiver.empty() ? kDefaultReceiver : receiver) : (agent.empty() ? kDefaultAgent : agent);
  if (verify && to_receiver && !words.agent.empty()) options.verify_agent = words.agent;
  for (const std::string& address : {options.address, options.verify_agent.value_or(options.address)}) {
    const Result<net::HostPort> parsed = net::ParseHostPort(address);
    if (!parsed.ok()) return {ErrorCode::kUsage, parsed.status().message()};
  }
  return OkStatus();
}

std::string HealthService(const std::string& word, Daemon daemon) {
  if (word != "liveness" && word != "readiness") return word;
  return Cat(daemon == Daemon::kAgent ? "trainer-agent-" : "raas-receiver-", word);
}

}  // namespace

Result<std::optional<Invocation>> ParseInvocation(int argc, const char* const* argv, std::ostream& out) {
  Invocation invocation;
  Words words;
  CLI::App app("Shows and steers Lockstep's daemons", "lockstepctl");
  app.set_version_flag("--version", Cat("lockstepctl ", kVersion, " (", telemetry::BuildRevision(), ")"));
  app.add_option("--agent", words.agent, "Talk to this trainer_agent [$LOCKSTEP_AGENT, 127.0.0.1:7700]")
      ->type_name("HOST:PORT");
  app.add_option("--receiver", words.receivers, "Talk to this raas_receiver [$LOCKSTEP_RECEIVER, 127.0.0.1:7710]")
      ->allow_extra_args(false)
      ->type_name("HOST:PORT");
  app.add_flag("--json", invocation.json, "Print JSON: one document, or for watch one a line");
  app.add_flag("--quiet", invocation.quiet, "Print nothing but errors");
  CLI::Option* timeout = app.add_option("--timeout", words.timeout_ms, "Give up after so many milliseconds")
                             ->type_name("MS")
                             ->check(CLI::Range(int64_t{1}, int64_t{7} * 24 * 3600 * 1000));
  AddCommands(app, invocation, words);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    app.exit(success, out, out);
    return std::optional<Invocation>();
  } catch (const CLI::ParseError& error) {
    return Status(ErrorCode::kUsage, Cat(error.what(), " (see --help)"));
  }
  if (app.get_subcommands().size() != 1) return Status(ErrorCode::kUsage, "one command is needed (see --help)");
  if (timeout->count() > 0) {
    invocation.daemon.timeout = std::chrono::milliseconds(words.timeout_ms);
    if (invocation.timeline) invocation.timeline->timeout = invocation.daemon.timeout;
  }
  if (invocation.plan) {
    LS_RETURN_IF_ERROR(FinishPlan(words, *invocation.plan));
    return std::optional<Invocation>(std::move(invocation));
  }
  if (invocation.timeline) {
    LS_RETURN_IF_ERROR(FinishTimelineOptions(words.agent, words.receivers, invocation.json, *invocation.timeline));
    return std::optional<Invocation>(std::move(invocation));
  }
  LS_RETURN_IF_ERROR(ChooseDaemon(words, invocation.daemon));
  invocation.daemon.health_service = HealthService(words.health_service, invocation.daemon.daemon);
  return std::optional<Invocation>(std::move(invocation));
}

}  // namespace lockstep::ctl
