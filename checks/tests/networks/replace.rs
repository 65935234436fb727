//! `longhaul accelerate --replace`: a box that takes over from a running one, under traffic.
//! Skipped, loudly, if namespaces cannot be created.

use longhaul_checks::network::{
    Flow, LEFT, LIMIT, Namespace, Network, RIGHT, RunningBox, Traffic, has_af_xdp,
};
use longhaul_checks::{Finished, Program, kill, require};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The host behind a TAP device.
const BEHIND_TAP: &str = "10.99.0.3";
/// A box in whose place no other forwards would lose traffic for longer.
const INTERRUPTION_MAX: Duration = Duration::from_secs(2);

/// A box near the left host, and its path: a fibre and a box near the right host.
fn path(network: &Network, options: &str) -> [RunningBox; 2] {
    [
        network.start("emulate --a w2 --b e2 --distance 1000km --rate 1G"),
        network.start(&format!(
            "accelerate --name far --lan east --wan e1 --rate 1G --distance 1000km{options}"
        )),
    ]
}

/// Starts a box that replaces `old`, started with the same arguments, and waits until it has.
fn replace(network: &Network, old: RunningBox, arguments: &str) -> (RunningBox, Finished) {
    let arguments = format!("{arguments} --replace");
    let mut program = Program::start(&mut network.middle.longhaul(&network.runtime, &arguments));
    let took_over = format!("took over from process {}", old.program.id());
    program.wait_for_output(&took_over, LIMIT);
    (RunningBox { program, name: old.name }, old.program.succeed(LIMIT))
}

/// Runs a process that is to replace a box, and is refused; returns what it says.
fn refused(network: &Network, arguments: &str) -> String {
    let arguments = format!("{arguments} --replace");
    let mut command = network.middle.longhaul(&network.runtime, &arguments);
    let done = Program::start(&mut command).finish(LIMIT);
    assert!(!done.status.success(), "{done}");
    done.stderr
}

fn pid(status: &Value) -> u64 {
    status["pid"].as_u64().expect("a PID")
}

fn stored(status: &Value) -> u64 {
    status["pairs"][0]["accelerator"]["stored_bytes"].as_u64().expect("bytes")
}

fn counter(status: &Value, name: &str) -> u64 {
    status["pairs"][0]["accelerator"]["counters"][name].as_u64().expect("a count")
}

/// Runs `work` under traffic, and returns the longest gap between datagrams from `from`, also just
/// after it. All of a TCP stream must arrive unchanged.
fn longest_gap<R>(network: &Network, from: &Namespace, work: impl FnOnce() -> R) -> (Duration, R) {
    // RoCEv2's port at the other address is an RNIC's.
    let to = "10.99.0.4";
    network.right.set(&format!("address replace {to}/24 dev eth0"));
    let source = if from.name == network.left.name { LEFT } else { BEHIND_TAP };
    let traffic = Traffic::start([from, &network.right], [source, to]);
    let begun = Instant::now();
    let done = work();
    thread::sleep(Duration::from_millis(100));
    let ended = Instant::now();
    let arrivals = traffic.end().unwrap_or_else(|reason| panic!("{reason}"));
    (arrivals[Flow::Other as usize].longest_gap(begun, ended), done)
}

/// Replaces the near box, with ports of this form, while RDMA, TCP and UDP cross it.
fn keeps_all_connections(
    what: &str,
    network: &Network,
    port: impl Fn(&str) -> String,
    options: &str,
) {
    require("ib_write_bw", "perftest");
    let arguments = format!(
        "accelerate --name near --lan {} --wan {} --rate 1G --distance 1000km{options}",
        port("west"),
        port("w1")
    );
    let near = network.start(&arguments);
    let others = path(network, options);
    network.round_trip(RIGHT, 64, 3);
    let mut ended = None;
    let mut gap = Duration::ZERO;
    network.transfer("ib_write_bw -R -s 65536 -m 1024 -n 15000", || {
        network.wait_for(&near, "a flow in full flight", |status| {
            counter(status, "stored_packets") > 5000
        });
        let before = pid(&network.status(&near));
        let (longest, (near, old)) =
            longest_gap(network, &network.left, || replace(network, near, &arguments));
        gap = longest;
        assert_ne!(pid(&network.status(&near)), before);
        ended = Some((near, old));
    });
    let (near, old) = ended.expect("replaced");
    let told = old.stderr.lines().find(|line| line.contains("has replaced this box"));
    let told = told.unwrap_or_else(|| panic!("{old}"));
    println!("{what}: {told}; longest gap between datagrams: {gap:?}");
    assert!(gap < INTERRUPTION_MAX, "{gap:?}: {old}");
    // It accelerates again.
    network.transfer("ib_write_bw -R -s 65536 -m 1024 -n 400", || {});
    let status = network.status(&near);
    assert!(counter(&status, "pseudo_acks") > 0, "{status:#}");
    near.end();
    others.into_iter().for_each(|one| drop(one.end()));
}

#[test]
fn keeps_all_connections_over_packet_sockets() {
    let Some(network) = Network::new("a box that is replaced", 1500) else { return };
    keeps_all_connections("AF_PACKET", &network, str::to_owned, "");
}

#[test]
fn keeps_all_connections_with_a_transport() {
    let Some(network) = Network::new("a box with a transport that is replaced", 1500) else {
        return;
    };
    for cable in ["w1", "w2", "e1", "e2"] {
        network.middle.set(&format!("link set {cable} mtu 1600"));
    }
    keeps_all_connections("AF_PACKET with a transport", &network, str::to_owned, " --transport");
}

#[test]
fn keeps_all_connections_with_several_cores() {
    let Some(network) = Network::new("a box of two cores that is replaced", 1500) else { return };
    keeps_all_connections("AF_PACKET, two cores", &network, str::to_owned, " --cores 2");
}

#[test]
fn keeps_all_connections_over_af_xdp() {
    if !has_af_xdp("a box with AF_XDP ports that is replaced") {
        return;
    }
    for mode in ["native", "generic"] {
        let Some(network) = Network::new("a box with AF_XDP ports that is replaced", 1500) else {
            return;
        };
        if mode == "generic" {
            network.cut_datagrams_at_hosts();
        }
        let port = |name: &str| format!("xdp:{name},{mode}");
        keeps_all_connections(&format!("AF_XDP, {mode}"), &network, port, "");
        assert!(!network.has_xdp_program("west"), "it stays behind");
    }
}

#[test]
fn keeps_a_tap_device_and_can_be_repeated() {
    let Some(network) = Network::new("a box with a TAP device that is replaced", 1500) else {
        return;
    };
    let arguments = "accelerate --name near --lan tap:lhtap --wan east";
    let mut near = network.start(arguments);
    network.middle.set(&format!("address add {BEHIND_TAP}/24 dev lhtap"));
    for _ in 0..3 {
        let (gap, (successor, _)) =
            longest_gap(&network, &network.middle, || replace(&network, near, arguments));
        println!("TAP: longest gap between datagrams: {gap:?}");
        assert!(gap < INTERRUPTION_MAX, "{gap:?}");
        near = successor;
    }
    near.end();
}

#[test]
fn tells_the_service_manager_which_process_goes_on() {
    let Some(network) = Network::new("a service that is replaced", 1500) else { return };
    let path = network.runtime.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(LIMIT)).expect("a timeout");
    let says = || {
        let mut text = [0; 256];
        let len = manager.recv(&mut text).expect("a message");
        String::from_utf8_lossy(&text[..len]).into_owned()
    };
    let command = |arguments: &str| {
        let mut command = network.middle.longhaul(&network.runtime, arguments);
        // The socket is another user's.
        command.arg("--keep-privileges").env("NOTIFY_SOCKET", &path);
        command
    };
    let near = Program::start(&mut command("accelerate --name near --lan west --wan east"));
    assert_eq!(says(), "READY=1");
    let replacing = "accelerate --name near --lan west --wan east --replace --detach";
    // The process in the background keeps its output open.
    let done = command(replacing).stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(done.expect("a program").success());
    let successor = pid(&network.try_status("near").expect("a status"));
    assert_eq!(says(), format!("MAINPID={successor}"));
    assert_eq!(says(), "READY=1");
    near.succeed(LIMIT);
    network.round_trip(RIGHT, 64, 2);
    // Nobody waits for it.
    let killed = Command::new("kill").arg(successor.to_string()).status();
    assert!(killed.expect("kill").success());
    let deadline = Instant::now() + LIMIT;
    while network.try_status("near").is_some() {
        assert!(Instant::now() < deadline, "it does not end");
        thread::sleep(LOOK_AGAIN);
    }
}

/// A box that is told to end while it is being replaced does so once it is decided who has its
/// ports: they stay up if the other process has them.
#[test]
fn a_signal_waits_for_the_verdict() {
    use the_running_box_continues::Successor;
    let Some(network) = Network::new("a signal to a box that is replaced", 1500) else { return };
    let start = || network.start("accelerate --name near --lan west --wan east");
    let near = start();
    let mut successor = Successor::receive_all(&network);
    near.signal(libc::SIGTERM);
    successor.say(&json!({"descriptors": 0, "message": "ready"}));
    assert!(successor.hear().contains("go"));
    successor.say(&json!({"descriptors": 0, "message": "forwards"}));
    let ended = near.program.succeed(LIMIT);
    assert!(ended.stderr.contains("has replaced this box"), "{ended}");
    assert!(!ended.stderr.contains("taken down"), "{ended}");

    let near = start();
    let successor = Successor::receive_all(&network);
    near.signal(libc::SIGTERM);
    drop(successor);
    let ended = near.program.succeed(LIMIT);
    assert!(ended.stderr.contains("west, east taken down: the box ends"), "{ended}");
}

/// A box that is killed just after it has taken over leaves its ports to its guard, which has
/// nothing but its orders by then: the guard of the box before still has the ports.
#[test]
fn a_new_box_that_is_killed_at_once_takes_its_ports_down() {
    let Some(network) = Network::new("a successor that is killed", 1500) else { return };
    let arguments = "accelerate --name near --lan west --wan east";
    let mut near = network.start(arguments);
    network.round_trip(RIGHT, 64, 2);
    // The box waits for its guard's end before its own.
    let guard = near.guard();
    kill(guard, libc::SIGSTOP);
    let arguments = format!("{arguments} --replace");
    let new = Program::start(&mut network.middle.longhaul(&network.runtime, &arguments));
    near.program.wait_for_output("has replaced this box", LIMIT);
    new.signal(libc::SIGKILL);
    new.finish(LIMIT);
    kill(guard, libc::SIGCONT);
    let ended = near.program.succeed(LIMIT);
    assert!(!ended.stderr.contains("taken down"), "{ended}");
    for host in [&network.left, &network.right] {
        host.until_carrier("eth0", false);
    }
}

mod the_running_box_continues {
    use super::*;

    #[test]
    fn if_the_new_one_asks_for_what_it_cannot_have() {
        let Some(network) = Network::new("successors that are refused", 1500) else { return };
        let says = refused(&network, "accelerate --name near --lan west --wan east");
        assert!(
            says.contains("no running box 'near'") && says.contains("omit --replace"),
            "{says}"
        );
        let near = network.start("accelerate --name near --lan west --wan east");
        for (arguments, parts) in [
            ("--lan west --wan w1", ["has the ports west, w1", "it has west, east"]),
            ("--lan xdp:west --wan east", ["has the ports xdp:west, east", "drain and restart"]),
            ("--lan west --wan east --cores 2", ["2 cores", "it has 1"]),
            ("--lan west --wan east --lan w1 --wan e1", ["has 2 pairs", "it has 1"]),
        ] {
            let says = refused(&network, &format!("accelerate --name near {arguments}"));
            let is_told = says.contains("the running box continues");
            assert!(is_told && parts.iter().all(|part| says.contains(part)), "{says}");
        }
        network.round_trip(RIGHT, 64, 2);
        let ended = near.end();
        assert_eq!(ended.stderr.matches("does not replace this box").count(), 4, "{ended}");

        let socket = network.runtime.path().join("lan.sock");
        let arguments =
            format!("accelerate --name near --lan memif:{},master --wan east", socket.display());
        let near = network.start(&arguments);
        let says = refused(&network, &arguments);
        assert!(says.contains("cannot be handed over: shared memory"), "{says}");
        near.end();
        let fibre = network.start("emulate --name near --a west --b east");
        let says = refused(&network, "accelerate --name near --lan west --wan east");
        assert!(says.contains("'longhaul emulate', which is not replaced"), "{says}");
        fibre.end();
    }

    #[test]
    fn if_it_owes_more_than_it_can_deliver_in_time() {
        require("ib_write_bw", "perftest");
        let Some(network) = Network::new("a box that cannot drain", 1500) else { return };
        let arguments = "accelerate --name near --lan west --wan w1 --rate 1G --distance 1000km";
        let near = network.start(arguments);
        let [fibre, far] = path(&network, "");
        let transfer = network.begin("ib_write_bw -R -s 65536 -m 1024 -n 100000");
        network.wait_for(&near, "a flow in full flight", |status| {
            counter(status, "stored_packets") > 5000
        });
        fibre.signal(libc::SIGSTOP);
        network.wait_for(&near, "a store that fills", |status| stored(status) > 1 << 20);
        let mut first = {
            let arguments = format!("{arguments} --replace --drain 1s");
            Program::start(&mut network.middle.longhaul(&network.runtime, &arguments))
        };
        network.wait_for(&near, "draining", |status| {
            status["pairs"][0]["accelerator"]["is_draining"] == true
        });
        let says = refused(&network, arguments);
        assert!(says.contains("another process is already replacing it"), "{says}");
        first.wait(LIMIT);
        let says = first.finish(LIMIT).stderr;
        assert!(says.contains("after 1 s it still owes"), "{says}");
        network.wait_for(&near, "flows that are accepted", |status| {
            status["pairs"][0]["accelerator"]["is_draining"] == false
        });
        // One that is killed while it waits.
        let waiting = {
            let arguments = format!("{arguments} --replace --drain 60s");
            Program::start(&mut network.middle.longhaul(&network.runtime, &arguments))
        };
        network.wait_for(&near, "draining", |status| {
            status["pairs"][0]["accelerator"]["is_draining"] == true
        });
        waiting.signal(libc::SIGKILL);
        waiting.finish(LIMIT);
        network.wait_for(&near, "flows that are accepted", |status| {
            status["pairs"][0]["accelerator"]["is_draining"] == false
        });
        fibre.signal(libc::SIGCONT);
        for end in [transfer.client, transfer.server] {
            end.signal(libc::SIGKILL);
            end.finish(LIMIT);
        }
        let ended = near.end();
        assert!(ended.stderr.contains("which continues: it ended"), "{ended}");
        for one in [fibre, far] {
            one.end();
        }
    }

    /// What a successor of a box between west and east says first.
    fn wanted() -> Value {
        let pair = json!({
            "ports": ["west", "east"], "recordings": [null, null], "cores": 1, "settings": []
        });
        let wanted = json!({"command": "accelerate", "drain_ms": 10000, "pairs": [pair]});
        json!({"descriptors": 0, "message": {"wanted": wanted}})
    }

    fn control(network: &Network) -> PathBuf {
        network.runtime.path().join("longhaul/boxes/near/control")
    }

    /// A successor that does what a test says.
    pub(super) struct Successor {
        stream: BufReader<UnixStream>,
    }

    impl Successor {
        fn connect(network: &Network) -> Self {
            let stream = UnixStream::connect(control(network)).expect("a control socket");
            stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
            Successor { stream: BufReader::new(stream) }
        }

        pub(super) fn say(&mut self, message: &Value) {
            writeln!(self.stream.get_mut(), "{message}").expect("said");
        }

        /// The next line; nothing at the end. The kernel closes descriptors that come with it.
        pub(super) fn hear(&mut self) -> String {
            let mut line = String::new();
            self.stream.read_line(&mut line).expect("a line");
            line
        }

        /// Connects, and is accepted once the box has noticed the end of the one before.
        fn accepted(network: &Network) -> Self {
            let deadline = Instant::now() + LIMIT;
            loop {
                let mut this = Successor::connect(network);
                this.say(&json!({"replace": {"version": 2}}));
                let answer = this.hear();
                if answer.contains("accepted") {
                    return this;
                }
                let is_busy = answer.contains("already replacing");
                assert!(is_busy && Instant::now() < deadline, "{answer}");
                thread::sleep(LOOK_AGAIN);
            }
        }

        /// Goes on until the box holds still and has passed on everything.
        pub(super) fn receive_all(network: &Network) -> Self {
            let mut this = Successor::accepted(network);
            this.say(&wanted());
            loop {
                let line = this.hear();
                assert!(!line.is_empty() && !line.contains("refused"), "{line}");
                if line.contains("complete") {
                    return this;
                }
            }
        }
    }

    #[test]
    fn if_the_new_one_is_of_another_version_or_makes_no_sense() {
        let Some(network) = Network::new("successors without sense", 1500) else { return };
        let near = network.start("accelerate --name near --lan west --wan east");
        let mut other = Successor::connect(&network);
        other.say(&json!({"replace": {"version": 1000}}));
        let says = other.hear();
        assert!(says.contains("refused") && says.contains("by version 1000"), "{says}");
        for message in [json!({"wanted": 1}), json!("ready"), json!({"wanted": {"pairs": []}})] {
            let mut other = Successor::accepted(&network);
            other.say(&json!({"descriptors": 0, "message": message}));
            assert!(!other.hear().contains("complete"));
        }
        network.round_trip(RIGHT, 64, 2);
        near.end();
    }

    /// A process that becomes a user, is told to go, says so, and does nothing more.
    const SILENT: &str = r#"
import os, pwd, signal, socket, sys
stream = socket.socket(socket.AF_UNIX)
stream.connect(sys.argv[1])
if os.geteuid() == 0:
    os.setuid(pwd.getpwnam(sys.argv[2]).pw_uid)
lines = stream.makefile("rw")
for say, until in zip(sys.argv[3:], ("accepted", "complete", "go")):
    print(say, file=lines, flush=True)
    while until not in lines.readline():
        pass
print("told to go", file=sys.stderr, flush=True)
signal.pause()
"#;

    fn silent(network: &Network, user: &str) -> Program {
        let mut silent = Command::new("python3");
        silent.args(["-c", SILENT]).arg(control(network)).arg(user);
        let ready = json!({"descriptors": 0, "message": "ready"});
        for says in [json!({"replace": {"version": 2}}), wanted(), ready] {
            silent.arg(says.to_string());
        }
        let mut silent = Program::start(&mut silent);
        silent.wait_for_output("told to go", LIMIT);
        silent
    }

    #[test]
    fn and_ends_if_the_new_one_stops_and_cannot_be_killed() {
        let Some(network) = Network::new("a successor of another user", 1500) else { return };
        let mut near = network.start("accelerate --name near --lan west --wan east");
        let silent = silent(&network, "root");
        near.program.wait_for_output("kill it, and this box continues", LIMIT);
        near.signal(libc::SIGTERM);
        let ended = near.program.succeed(LIMIT);
        for text in ["this box ends without it", "west, east taken down: the box ends"] {
            assert!(ended.stderr.contains(text), "{text}: {ended}");
        }
        silent.signal(libc::SIGKILL);
        silent.finish(LIMIT);
    }

    #[test]
    fn if_the_new_one_stops_before_it_forwards() {
        let Some(network) = Network::new("a successor that stops", 1500) else { return };
        let mut near = network.start("accelerate --name near --lan west --wan east");
        network.round_trip(RIGHT, 64, 2);
        let silent = silent(&network, "nobody");
        near.program.wait_for_output("it said nothing in time, and was killed", LIMIT);
        assert_eq!(silent.finish(LIMIT).status.signal(), Some(libc::SIGKILL));
        network.round_trip(RIGHT, 64, 2);
        near.end();
    }

    #[test]
    fn if_the_new_one_dies_or_hangs_while_it_holds_still() {
        let Some(network) = Network::new("successors that die", 1500) else { return };
        let near = network.start("accelerate --name near --lan west --wan east");
        network.round_trip(RIGHT, 64, 2);
        let dies = || drop(Successor::receive_all(&network));
        let hangs = || {
            let mut successor = Successor::receive_all(&network);
            while !successor.hear().is_empty() {}
        };
        let dies_late = || {
            let mut successor = Successor::receive_all(&network);
            successor.say(&json!({"descriptors": 0, "message": "ready"}));
            assert!(successor.hear().contains("go"));
        };
        for (what, successor) in [
            ("dies", &dies as &dyn Fn()),
            ("hangs", &hangs),
            ("dies after it was told to go", &dies_late),
        ] {
            let (gap, ()) = longest_gap(&network, &network.left, successor);
            println!("a successor that {what}: longest gap between datagrams: {gap:?}");
            network.round_trip(RIGHT, 64, 2);
        }
        // All of that does not keep a better one from it.
        let arguments = "accelerate --name near --lan west --wan east";
        let (near, old) = replace(&network, near, arguments);
        assert_eq!(old.stderr.matches("which continues").count(), 3, "{old}");
        network.round_trip(RIGHT, 64, 2);
        near.end();
    }
}
