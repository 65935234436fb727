//! The commands in README and the other pages. The program accepts each as printed; those that end
//! by themselves, boxes, and labs that are taken down again are run.

use longhaul_checks::network::{LIMIT, Network, has_af_xdp};
use longhaul_checks::{Finished, Program, RuntimeDir, Turn, longhaul, require, wait_until_asleep};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time limit of calculations on a busy machine.
const LONG: Duration = Duration::from_secs(300);
/// Placeholder of a public key in pages, and a key.
const KEY: [&str; 2] = ["PUBLIC_KEY", "lQOxwVZ0LW5Oy5ZQ0fG9vTL6nZYVx1rhEt0p8cYvXGk="];

/// A block of commands, or the commands in one line of text.
struct Block {
    page: PathBuf,
    line: usize,
    language: String,
    text: String,
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.page.display(), self.line)
    }
}

impl Block {
    /// Lines for a shell: without the prompt and the text after ` #`, continued ones joined.
    fn commands(&self) -> Vec<String> {
        let text = self.text.replace("\\\n", " ");
        let line = |line: &str| {
            let line = line.split(" #").next().unwrap_or(line).trim();
            line.strip_prefix("$ ").unwrap_or(line).replace(KEY[0], KEY[1])
        };
        text.lines().map(line).filter(|line| !line.is_empty()).collect()
    }

    /// Arguments of `longhaul` in its commands.
    fn calls(&self) -> Vec<String> {
        let lines = self.commands();
        lines.iter().flat_map(|line| calls_of(line)).collect()
    }
}

/// The calls of `longhaul` in `line`: their arguments, up to a redirection.
fn calls_of(line: &str) -> Vec<String> {
    let parts = line.split([';', '|']).flat_map(|part| part.split(" && "));
    let calls = parts.filter_map(|part| {
        let part = part.trim().trim_end_matches('&');
        let arguments = part.strip_prefix("./").unwrap_or(part).strip_prefix("longhaul ")?;
        arguments.split(" > ").next().map(|call| call.replace(" …", ""))
    });
    // A program's own messages begin with its name and a colon.
    calls.filter(|call| !call.split(' ').next().unwrap_or_default().ends_with(':')).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The pages for readers.
fn pages() -> Vec<PathBuf> {
    let folders = ["", "docs", "docs/spec", "packaging"].map(|folder| root().join(folder));
    let files = folders.iter().flat_map(|folder| {
        let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        entries.map(|entry| entry.expect("an entry").path())
    });
    files.filter(|file| file.extension().is_some_and(|end| end == "md")).collect()
}

/// The blocks of all pages, and the code spans in their text.
fn blocks() -> (Vec<Block>, Vec<Block>) {
    let (mut blocks, mut spans) = (Vec::new(), Vec::new());
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        let page = page.strip_prefix(root()).expect("a page of the tree").to_owned();
        let mut open: Option<Block> = None;
        for (number, line) in text.lines().enumerate() {
            let at = |language: &str, text: &str| Block {
                page: page.clone(),
                line: number + 1,
                language: language.to_owned(),
                text: text.to_owned(),
            };
            match (line.trim_start().strip_prefix("```"), &mut open) {
                (Some(language), None) => open = Some(at(language, "")),
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (None, Some(block)) => block.text += &format!("{line}\n"),
                (None, None) => spans.extend(line.split('`').skip(1).step_by(2).map(|s| at("", s))),
            }
        }
    }
    (blocks, spans)
}

/// A directory in which `longhaul` and `./longhaul` are the program.
struct Desk {
    dir: RuntimeDir,
    runtime: RuntimeDir,
}

impl Desk {
    fn new() -> Self {
        let dir = RuntimeDir::new();
        symlink(longhaul(), dir.path().join("longhaul")).expect("a link");
        Desk { dir, runtime: RuntimeDir::new() }
    }

    fn shell(&self, line: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(self.path());
        command.env("PATH", format!("{}:{path}", self.path().display()));
        command.env("XDG_RUNTIME_DIR", self.runtime.path()).env_remove("LD_PRELOAD");
        command
    }

    fn run(&self, line: &str) -> Finished {
        Program::start(&mut self.shell(line)).finish(LONG)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path().join(name), content).expect("a file");
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

#[test]
fn the_program_accepts_every_command_as_printed() {
    let desk = Desk::new();
    let (blocks, spans) = blocks();
    let help = desk.run("longhaul --help").stdout;
    let first_words: BTreeSet<&str> =
        help.lines().filter_map(|line| line.trim().split(' ').next()).collect();
    let mut calls = 0;
    let mut refused = Vec::new();
    for (block, is_span) in
        blocks.iter().map(|block| (block, false)).chain(spans.iter().map(|span| (span, true)))
    {
        for call in block.calls() {
            let subcommand = call.split(' ').next().unwrap_or_default();
            // The launcher's own subcommands, and spans of text that begin with the project's name.
            let is_launchers = ["test", "nightly"].contains(&subcommand);
            if is_launchers || is_span && !first_words.contains(subcommand) {
                continue;
            }
            calls += 1;
            // A program in a lab has options of its own.
            let is_own = |part: &&str| !part.is_empty() && !part.starts_with(' ');
            let own = call.split(" --").take_while(is_own).collect::<Vec<_>>().join(" --");
            let done = desk.run(&format!("longhaul {own} --help"));
            if !done.status.success() {
                refused.push(format!("{block}: {call}\n    {}", done.stderr));
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(calls > 100, "{calls} commands found");
}

/// The rules and times on the emulator's page, each on its own line.
#[test]
fn the_emulator_accepts_every_rule_as_printed() {
    let desk = Desk::new();
    let (blocks, _) = blocks();
    let lines = blocks.iter().flat_map(Block::commands);
    let rules: Vec<String> =
        lines.filter(|line| line.starts_with("--rule ") || line.starts_with("--at ")).collect();
    assert!(rules.len() >= 10, "{rules:?}");
    for rule in rules {
        // Its explanation begins after two blanks.
        let rule = rule.split("  ").next().unwrap_or(&rule);
        let done = desk.run(&format!("longhaul emulate --a eth1 --b eth2 {rule} --help"));
        assert!(done.status.success(), "{rule}: {done}");
    }
}

/// `cargo test`, `cargo bench` and `cargo run` in pages name existing packages and targets.
#[test]
fn cargo_has_the_packages_and_targets_that_pages_name() {
    let listed = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo");
    let workspace: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let has = |package: &str, kind: &str, target: &str| {
        let packages = workspace["packages"].as_array().expect("packages");
        let named = packages.iter().filter(|p| p["name"] == package);
        let mut targets = named.flat_map(|p| p["targets"].as_array().expect("targets"));
        targets.any(|t| kind.is_empty() || t["kind"][0] == kind && t["name"] == target)
    };
    let (blocks, spans) = blocks();
    let lines =
        blocks.iter().chain(&spans).flat_map(|b| b.commands().into_iter().map(move |c| (b, c)));
    let mut seen = 0;
    for (block, line) in lines.filter(|(_, line)| line.contains("cargo ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let value = |flag: &str| words.windows(2).find(|pair| pair[0] == flag).map(|pair| pair[1]);
        let Some(package) = value("-p") else { continue };
        let kind = ["test", "bench", "example"]
            .into_iter()
            .find_map(|kind| value(&format!("--{kind}")).map(|target| (kind, target)));
        let (kind, target) = kind.unwrap_or_default();
        assert!(has(package, kind, target), "{block}: {line}: no {kind} {target} in {package}");
        seen += 1;
    }
    assert!(seen > 5, "{seen} commands found");
}

/// Calculations, in the order of their page, on files named as printed.
#[test]
fn what_calculates_ends_well() {
    const CAPTURE: &str = "checks/captures/cm_rc_rping_100B.pcap";
    const SUBCOMMANDS: [&str; 8] =
        ["compare", "decode", "doctor", "key", "plan", "report", "reproduce", "sim"];
    let (blocks, _) = blocks();
    let desk = Desk::new();
    let nic = root().join("labs/nics/connectx6.toml");
    for (name, of) in [
        ("capture.pcap", root().join(CAPTURE)),
        ("capture.pcapng", root().join(CAPTURE)),
        ("run.pcap", root().join(CAPTURE)),
        ("mynic.toml", nic),
    ] {
        desk.write(name, fs::read(of).expect("a file of the tree"));
    }
    let is_scenario = |block: &&Block| block.language == "toml" && block.text.contains("[[flow]]");
    let scenarios: Vec<&Block> = blocks.iter().filter(is_scenario).collect();
    assert!(!scenarios.is_empty());
    for block in scenarios {
        desk.write("mine.toml", &block.text);
        let done = desk.run("longhaul sim mine.toml --out results.jsonl");
        assert!(done.status.success(), "{block}: {done}");
    }
    let copies = desk.run("cp results.jsonl before.jsonl && cp results.jsonl after.jsonl");
    assert!(copies.status.success(), "{copies}");
    let mut ran = 0;
    for block in &blocks {
        // Several pages begin with the same key.
        assert!(desk.run("rm -f *.key *.psk").status.success());
        for line in block.commands() {
            let Some(call) = calls_of(&line).into_iter().next() else { continue };
            let is_ours = SUBCOMMANDS.contains(&call.split(' ').next().unwrap_or_default());
            if !is_ours || !ends_well(&line) {
                continue;
            }
            let done = desk.run(&line);
            assert!(done.status.success(), "{block}: {done}");
            ran += 1;
        }
    }
    assert!(ran > 20, "{ran} commands ran");
}

/// `false` for commands that wait for a peer or an interface, or need a recorded power, and for a
/// complete reproduction.
fn ends_well(line: &str) -> bool {
    let others = ["--answer", "--probe ", "tcpdump", "--power "];
    let is_long = line.contains("reproduce") && !line.contains("--list");
    !is_long && !others.iter().any(|word| line.contains(word))
}

/// Boxes start as printed, between interfaces of these names, and end by SIGTERM. Those that
/// replace another one need it to run.
#[test]
fn boxes_start_as_printed() {
    let Some(network) = Network::new("boxes as documents have them", 1500) else { return };
    for end in ["eth1", "eth2"] {
        let queues = "numrxqueues 4 numtxqueues 4";
        network.middle.set(&format!("link add {end} {queues} type veth peer name {end}-host"));
        network.middle.set(&format!("link set {end} addrgenmode none up"));
        network.middle.set(&format!("link set {end}-host addrgenmode none up"));
    }
    let has_af_xdp = has_af_xdp("boxes over AF_XDP as documents have them");
    let desk = Desk::new();
    let keys = desk.run("for name in west east; do longhaul key new $name.key; done");
    assert!(keys.status.success() && desk.run("longhaul key psk west-east.psk").status.success());
    let is_box = |call: &String| {
        let is_box = ["accelerate --", "emulate --"].iter().any(|start| call.starts_with(start));
        let ports_are_there = !call.contains("dpdk:") && (has_af_xdp || !call.contains("xdp:"));
        is_box && ports_are_there && !call.contains("--replace")
    };
    let (blocks, _) = blocks();
    let calls = blocks.iter().flat_map(Block::calls).filter(is_box).map(|call| {
        // One is printed as an addition to earlier commands.
        if call.contains("--lan") || call.contains("--a ") {
            return call;
        }
        call.replace("accelerate", "accelerate --lan eth1 --wan eth2")
    });
    let calls: BTreeSet<String> = calls.collect();
    let mut started = 0;
    for call in &calls {
        let mut command = network.middle.longhaul(&network.runtime, call);
        let mut running = Program::start(command.current_dir(desk.path()));
        let deadline = Instant::now() + LIMIT;
        while running.is_running() && !is_served(&network) {
            assert!(Instant::now() < deadline, "{call}: no status within {LIMIT:?}");
            sleep(Duration::from_millis(10));
        }
        let runs = running.is_running();
        if runs {
            running.signal(libc::SIGTERM);
        }
        let done = running.finish(LIMIT);
        // A page may use more processors than this machine has, or show a refusal.
        let lacks = ["processor", "NUMA node"].iter().any(|part| done.stderr.contains(part));
        let is_shown = || shown_below(&blocks, call).is_some_and(|text| done.stderr.contains(text));
        assert!(if runs { done.status.success() } else { lacks || is_shown() }, "{call}: {done}");
        started += u32::from(runs);
    }
    assert!(started > 8, "{started} of {calls:?} started");
}

/// The line below `call` in its block, up to an omission.
fn shown_below<'a>(blocks: &'a [Block], call: &str) -> Option<&'a str> {
    let lines = blocks.iter().flat_map(|block| block.text.lines().zip(block.text.lines().skip(1)));
    let below = lines.filter(|(line, _)| line.ends_with(call)).map(|(_, below)| below).next();
    below.map(|below| below.split(" …").next().unwrap_or(below))
}

/// Whether a box runs and answers.
fn is_served(network: &Network) -> bool {
    let mut status = network.runtime.longhaul("box status --json");
    Program::start(&mut status).finish(LIMIT).status.success()
}

/// Blocks that bring a lab up and take it down succeed, with everything that they run in it.
#[test]
fn labs_go_up_and_down_as_printed() {
    require("ib_write_bw", "perftest");
    let _turn = Turn::take();
    let (blocks, _) = blocks();
    let has = |block: &Block, call: &str| block.calls().iter().any(|it| it.starts_with(call));
    let labs = blocks.iter().filter(|block| has(block, "lab up") && has(block, "lab down"));
    let mut ran = 0;
    for block in labs {
        let desk = Desk::new();
        let mut servers = Vec::new();
        for line in block.commands() {
            if line == "wait" {
                servers.drain(..).for_each(|it: Program| drop(it.succeed(LIMIT)));
                continue;
            }
            let Some(server) = line.strip_suffix('&') else {
                let done = desk.run(&line);
                assert!(done.status.success(), "{block}: {done}");
                continue;
            };
            let mut server = Program::start(&mut desk.shell(&format!("exec {server}")));
            let deadline = Instant::now() + LIMIT;
            while !has_programs(&desk) {
                assert!(server.is_running() && Instant::now() < deadline, "{block}: {line}");
                sleep(Duration::from_millis(10));
            }
            wait_until_asleep(server.id());
            servers.push(server);
        }
        assert!(servers.is_empty(), "{block}: a lab goes down under a program: `wait` is missing");
        ran += 1;
    }
    assert!(ran > 1, "{ran} labs ran");
}

/// Whether a program of host b has attached to its device.
fn has_programs(desk: &Desk) -> bool {
    let status = desk.run("longhaul lab status --json");
    let status: Value =
        serde_json::from_str(&status.stdout).unwrap_or_else(|e| panic!("{e}: {status}"));
    status["hosts"][1]["programs"] != 0
}
