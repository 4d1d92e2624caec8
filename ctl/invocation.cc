#include "ctl/invocation.h"

#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <map>
#include <ostream>

#include "common/base/text.h"
#include "common/base/version.h"
#include "common/config/man_page.h"
#include "common/net/host_port.h"
#include "common/telemetry/build_info.h"
#include "ctl/completion.h"

namespace lockstep::ctl {
namespace {

// Values as CLI11 leaves them, before they are given their meaning.
struct RawArguments {
  std::string agent;
  std::vector<std::string> receivers;
  std::string health_service;
  std::string shell;
  std::optional<Daemon> owner;  // of the command; nothing: both daemons do it
  rpc::TlsOptions tls;
  DaemonOptions daemon;
  PlanOptions plan;
  TimelineOptions timeline;
  LogOptions log;
  DoctorOptions doctor;
};

constexpr const char* kAbout =
    "Asks the daemon of this host, or the one that --agent or --receiver names. Options of the tool may stand before "
    "or behind the command.\n\nIt exits with 0 where all is well, with 64 for a wrong command line, with 69 where a "
    "daemon cannot be reached or is not serving, with 65 where bytes are not what they should be, and else with the "
    "code of the error that it prints.";

void AddModel(CLI::App& command, DaemonOptions& options) {
  command.add_option("model,--model", options.model, "The model; may be left out when there is only one");
}

CLI::App* AddCommand(CLI::App& app, const char* name, const char* about) {
  return app.add_subcommand(name, about)->fallthrough();  // global options may also stand behind the command
}

void AddCommands(CLI::App& app, RawArguments& raw) {
  DaemonOptions& options = raw.daemon;
  // `owner`: the daemon that the command belongs to. Nothing: both daemons do it.
  const auto add = [&](Command command, std::optional<Daemon> owner, const char* name, const char* about) {
    CLI::App* added = AddCommand(app, name, about);
    added->callback([&raw, command, owner] {
      raw.daemon.command = command;
      raw.owner = owner;
    });
    return added;
  };
  add(Command::kStatus, {}, "status", "Everything the daemon knows about its models");
  CLI::App* top = add(Command::kTop, {}, "top", "The same, again and again");
  CLI::Option* every = top->add_option("--every", options.every_s, "Seconds between two looks [1]")
                           ->type_name("S")
                           ->check(CLI::Range(1, 3600).description(""));
  top->add_flag("--changes", options.changes_only, "Look 20 times a second, and print only what is new; not ages")
      ->excludes(every);
  top->add_option("--count", options.count, "End after so many")->type_name("N");
  add(Command::kVersions, {}, "versions", "Versions and deltas that the daemon holds");
  CLI::App* pull = add(Command::kPull, Daemon::kReceiver, "pull", "Have a receiver pull the newest version now");
  AddModel(*pull, options);
  pull->add_flag("--full", options.force_full, "Pull every block, whatever the receiver holds");
  CLI::App* verify =
      add(Command::kVerify, Daemon::kReceiver, "verify",
          "Recompute a receiver's digests from memory, and compare with the agent's manifest and with the "
          "memory of engines that are attached; with --agent alone, an agent's digests");
  AddModel(*verify, options);
  verify->add_flag("--engines", options.needs_engines, "Fail when no engine is attached, or one was not compared");
  CLI::App* watch = add(Command::kWatch, {}, "watch", "Print each new version or sync as it comes");
  AddModel(*watch, options);
  watch->add_option("--count", options.count, "End after so many")->type_name("N");
  AddModel(*add(Command::kLayout, {}, "layout", "The model's tensors"), options);
  CLI::App* rollback = add(Command::kRollback, Daemon::kReceiver, "rollback",
                           "End a receiver's pull and return to another version: without an option to the one "
                           "before, which stays until the next pull");
  AddModel(*rollback, options);
  CLI::Option* to =
      rollback->add_option("--to", options.to_version, "Have this version, and keep it until the next pull");
  CLI::Option* skip = rollback->add_option("--not", options.not_version,
                                           "Have the version before this one, if it is current, and follow again as "
                                           "soon as there is a newer one");
  for (CLI::Option* version : {to, skip}) version->type_name("VERSION")->check(CLI::PositiveNumber);
  to->excludes(skip);
  add(Command::kDrop, Daemon::kAgent, "drop",
      "Have an agent forget a model whose trainer has ended, and free its memory; receivers keep what they hold")
      ->add_option("model,--model", options.model, "The model")
      ->required();
  CLI::App* wait =
      add(Command::kServed, Daemon::kAgent, "wait-served",
          "Wait until receivers serve a version or a newer one; without an option every receiver that is connected");
  AddModel(*wait, options);
  CLI::Option* wanted =
      wait->add_option("--to", options.served_version, "The version [the newest of now]")->type_name("VERSION");
  wanted->check(CLI::PositiveNumber);
  wait->add_option("--label", options.label, "The newest version that has this label")->excludes(wanted);
  CLI::Option* receivers =
      wait->add_option("--receivers", options.receivers, "So many receivers, with all of their engines");
  CLI::Option* engines = wait->add_option("--engines", options.engines, "So many engines, of whichever receivers");
  for (CLI::Option* count : {receivers, engines}) count->type_name("N")->check(CLI::PositiveNumber);
  wait->add_option("--name", options.names, "This receiver, or one of its engines; may be given several times")
      ->allow_extra_args(false)
      ->type_name("RECEIVER[/ENGINE]")
      ->excludes(receivers)
      ->excludes(engines);
  receivers->excludes(engines);
  CLI::App* diff =
      add(Command::kDiff, Daemon::kAgent, "diff",
          "What versions changed of the one before: elements, norms, NaN and Inf, by tensor, layer and expert");
  diff->add_option("--model", options.model, "The model; may be left out when there is only one");
  AddDiffOptions(*diff, options.diff);
  CLI::App* receipt = add(Command::kReceipt, Daemon::kReceiver, "receipt",
                          "Which weights engines served, from when to when: by digests, and signed by --archive-key");
  AddModel(*receipt, options);
  receipt
      ->add_option_function<std::string>(
          "--engine", [&options](const std::string& name) { options.receipts.set_engine(name); }, "Of this engine")
      ->type_name("NAME");
  receipt
      ->add_option_function<uint64_t>(
          "--version", [&options](uint64_t version) { options.receipts.set_version(version); }, "Of this version")
      ->type_name("N")
      ->check(CLI::PositiveNumber.description(""));
  const auto add_time = [&](const char* name, auto set, const char* about) {
    receipt
        ->add_option_function<double>(
            name, [&options, set](double unix_s) { (options.receipts.*set)(static_cast<int64_t>(unix_s * 1e9)); },
            about)
        ->type_name("UNIX_SECONDS")
        ->check(CLI::Range(0.0, 9e9).description(""));
  };
  add_time("--from", &v1::GetReceiptsRequest::set_from_unix_ns, "That were served then, or later");
  add_time("--until", &v1::GetReceiptsRequest::set_to_unix_ns, "That were served then, or before");
  receipt->add_option("--keys", options.keys, "Fail where one of these Ed25519 public keys (PEM) has not signed")
      ->type_name("FILE");
  receipt->add_option("--file", options.receipts_file, "Read what --json printed; asks no daemon")->type_name("FILE");
  add(Command::kHealth, {}, "health", "Exit 0 when the daemon is serving, 69 when not")
      ->add_option("service,--service", raw.health_service, "liveness, readiness, or a service's full name");
  AddPlanOptions(
      *AddCommand(app, "plan", "Which rank copies what, from a trainer's shape or its descriptions; asks no daemon"),
      raw.plan);
  AddTimelineOptions(*AddCommand(app, "timeline", "What daemons did for a version, when: a table, and a trace"),
                     raw.timeline);
  AddCommand(app, "completion", "A script that completes commands and options: source <(lockstepctl completion bash)")
      ->add_option("shell", raw.shell, "bash, zsh or fish")
      ->required();
  AddDoctorOptions(
      *AddCommand(app, "doctor",
                  "What of this host would keep daemons from working, and what corrects it; asks no daemon"),
      raw.doctor);
  AddLogOptions(
      *AddCommand(app, "log", "Versions in a directory, as a receiver with --archive writes them; asks no daemon"),
      raw.log);
}

Status CheckAsksNone(const RawArguments& raw, const char* command) {
  if (raw.agent.empty() && raw.receivers.empty()) return OkStatus();
  return {ErrorCode::kUsage, Cat(command, " asks no daemon: leave --agent and --receiver out")};
}

// Whether there is a socket of this host's.
bool Listens(std::string_view address) {
  struct stat info {};
  return ::stat(std::string(address.substr(std::string_view("unix:").size())).c_str(), &info) == 0 &&
         S_ISSOCK(info.st_mode);
}

// Where a command goes that either daemon does and that names none: what the environment names, else what listens on
// this host, an agent first.
Daemon DaemonMeant() {
  if (!Environment(kAgentVariable).empty()) return Daemon::kAgent;
  if (!Environment(kReceiverVariable).empty()) return Daemon::kReceiver;
  return !Listens(UsualAgent()) && Listens(UsualReceiver()) ? Daemon::kReceiver : Daemon::kAgent;
}

std::string AddressOf(Daemon daemon, const RawArguments& raw) {
  const bool agent = daemon == Daemon::kAgent;
  const std::string named = agent ? raw.agent : raw.receivers.empty() ? "" : raw.receivers[0];
  if (!named.empty()) return named;
  const std::string set = Environment(agent ? kAgentVariable : kReceiverVariable);
  if (!set.empty()) return set;
  return agent ? UsualAgent() : UsualReceiver();
}

// Decides which daemon the command goes to, and where that is: the one that is named, else its owner.
Status ChooseDaemon(const RawArguments& raw, DaemonOptions& options) {
  const bool agent = !raw.agent.empty();
  const bool receiver = !raw.receivers.empty();
  const bool verify = options.command == Command::kVerify;
  if (raw.receivers.size() > 1) return {ErrorCode::kUsage, "only timeline takes several --receiver"};
  if (agent && receiver && !verify) {
    return {ErrorCode::kUsage, "--agent and --receiver exclude each other, except for verify and timeline"};
  }
  const bool agents_verify = verify && !options.needs_engines;
  if (raw.owner == Daemon::kReceiver && agent && !receiver && !agents_verify) {
    return {ErrorCode::kUsage, "only receivers can do that: use --receiver HOST:PORT"};
  }
  if (raw.owner == Daemon::kAgent && receiver) {
    return {ErrorCode::kUsage, "only agents can do that: use --agent HOST:PORT"};
  }
  options.daemon = receiver ? Daemon::kReceiver : agent ? Daemon::kAgent : raw.owner ? *raw.owner : DaemonMeant();
  options.address = AddressOf(options.daemon, raw);
  if (agent && receiver) options.verify_agent = raw.agent;
  for (const std::string& address : {options.address, options.verify_agent.value_or(options.address)}) {
    const Result<net::ControlAddress> parsed = net::ParseControlAddress(address);
    if (!parsed.ok()) return {ErrorCode::kUsage, parsed.status().message()};
  }
  return OkStatus();
}

// With what of it the command line does not say from the environment.
rpc::TlsOptions ChooseTls(rpc::TlsOptions tls) {
  const std::pair<std::string*, const char*> settings[] = {{&tls.cert, "LOCKSTEP_TLS_CERT"},
                                                           {&tls.key, "LOCKSTEP_TLS_KEY"},
                                                           {&tls.ca, "LOCKSTEP_TLS_CA"},
                                                           {&tls.server_name, "LOCKSTEP_TLS_SERVER_NAME"}};
  for (const auto& [setting, variable] : settings) {
    if (setting->empty()) *setting = Environment(variable);
  }
  return tls;
}

std::string HealthService(const std::string& word, Daemon daemon) {
  if (word != "liveness" && word != "readiness") return word;
  return Cat(daemon == Daemon::kAgent ? "trainer-agent-" : "raas-receiver-", word);
}

}  // namespace

Result<std::optional<Invocation>> ParseInvocation(int argc, const char* const* argv, std::ostream& out) {
  Invocation invocation;
  RawArguments raw;
  CLI::App app("Shows and steers Lockstep's daemons", "lockstepctl");
  app.set_version_flag("--version", Cat("lockstepctl ", kVersion, " (", telemetry::BuildRevision(), ")"));
  app.add_option("--agent", raw.agent, "Talk to this trainer_agent [$LOCKSTEP_AGENT, this host's]")
      ->type_name("HOST:PORT|unix:PATH");
  app.add_option("--receiver", raw.receivers, "Talk to this raas_receiver [$LOCKSTEP_RECEIVER, this host's]")
      ->allow_extra_args(false)
      ->type_name("HOST:PORT|unix:PATH");
  app.add_option("--tls-cert", raw.tls.cert, "Own certificate, PEM; without, plaintext [$LOCKSTEP_TLS_CERT]")
      ->type_name("FILE");
  app.add_option("--tls-key", raw.tls.key, "Its private key, PEM [$LOCKSTEP_TLS_KEY]")->type_name("FILE");
  app.add_option("--tls-ca", raw.tls.ca, "What signed the daemons' certificates, PEM [$LOCKSTEP_TLS_CA]")
      ->type_name("FILE");
  app.add_option("--tls-server-name", raw.tls.server_name,
                 "DNS name, IP or URI that the daemon's certificate must have, when it is not the address's host "
                 "[$LOCKSTEP_TLS_SERVER_NAME]")
      ->type_name("NAME");
  bool man = false;
  app.add_flag("--man", man, "Print this as a manual page, for man -l -, and exit");
  app.add_flag("--json", invocation.json, "Print JSON: one document, or for watch and top one a line");
  app.add_flag("--quiet", invocation.quiet, "Print nothing but errors");
  const auto set_timeout = [&raw](int64_t ms) {
    raw.daemon.timeout = raw.timeline.timeout = std::chrono::milliseconds(ms);
  };
  const std::map<std::string, int64_t> units = {{"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}};
  app.add_option_function<int64_t>("--timeout", set_timeout, "Give up after so long, such as 500ms, 30s or 2m")
      ->transform(CLI::AsNumberWithUnit(units, CLI::AsNumberWithUnit::UNIT_REQUIRED).description(""))
      ->check(CLI::Range(int64_t{1}, int64_t{7} * 24 * 3600 * 1000).description(""))
      ->type_name("TIME");
  AddCommands(app, raw);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    app.exit(success, out, out);
    return std::optional<Invocation>();
  } catch (const CLI::ParseError& error) {
    return Status(ErrorCode::kUsage, Cat(WithoutPasswords(error.what()), " (see --help)"));
  }
  if (man) {
    out << config::ManPage(app, kAbout) << std::flush;
    return std::optional<Invocation>();
  }
  if (app.get_subcommands().size() != 1) return Status(ErrorCode::kUsage, "one command is needed (see --help)");
  if (app.got_subcommand("completion")) {
    LS_ASSIGN_OR_RETURN(const std::string script, CompletionScript(app, raw.shell));
    out << script << std::flush;
    return std::optional<Invocation>();
  }
  if (app.got_subcommand("plan")) {
    LS_RETURN_IF_ERROR(CheckAsksNone(raw, "plan"));
    LS_RETURN_IF_ERROR(FinishPlanOptions(raw.plan));
    invocation.wanted = raw.plan;
  } else if (app.got_subcommand("log")) {
    LS_RETURN_IF_ERROR(CheckAsksNone(raw, "log"));
    invocation.wanted = raw.log;
  } else if (app.got_subcommand("doctor")) {
    LS_RETURN_IF_ERROR(CheckAsksNone(raw, "doctor"));
    raw.doctor.tls = ChooseTls(raw.tls);
    invocation.wanted = raw.doctor;
  } else if (app.got_subcommand("timeline")) {
    raw.timeline.tls = ChooseTls(raw.tls);
    LS_RETURN_IF_ERROR(rpc::PrepareTls(raw.timeline.tls));
    LS_RETURN_IF_ERROR(FinishTimelineOptions(raw.agent, raw.receivers, invocation.json, raw.timeline));
    invocation.wanted = raw.timeline;
  } else {
    raw.daemon.tls = ChooseTls(raw.tls);
    LS_RETURN_IF_ERROR(rpc::PrepareTls(raw.daemon.tls));
    LS_RETURN_IF_ERROR(ChooseDaemon(raw, raw.daemon));
    raw.daemon.health_service = HealthService(raw.health_service, raw.daemon.daemon);
    invocation.wanted = raw.daemon;
  }
  return std::optional<Invocation>(std::move(invocation));
}

Status RunCommand(const Invocation& invocation, std::ostream& out) {
  const Output output{out, invocation.json, invocation.quiet};
  return std::visit([&](const auto& options) { return Run(options, output); }, invocation.wanted);
}

}  // namespace lockstep::ctl
