//! Networks that go on without their box: what docs/fail-open.md describes, between hosts in
//! network namespaces of this machine. Skipped, loudly, if namespaces or AF_XDP are unavailable.

use longhaul_checks::network::failures::LOOPBACKS;
use longhaul_checks::network::{
    Flow, LEFT, LIMIT, Network, RIGHT, RunningBox, Traffic, Transfer, has_af_xdp,
};
use longhaul_checks::require;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);
/// Linux reports at most one carrier loss per second.
const CALM: Duration = Duration::from_millis(1100);

/// Runs traffic between these addresses during `event`, until all of it flows again. Prints the
/// longest gap of each flow around the event.
fn gaps(network: &Network, what: &str, between: [&str; 2], event: impl FnOnce()) {
    let traffic = Traffic::start([&network.left, &network.right], between);
    let begun = Instant::now();
    event();
    sleep(CALM);
    let resumed = traffic.wait_until_resumed(Instant::now(), LIMIT);
    let ended = Instant::now();
    let arrivals = traffic.end().unwrap_or_else(|reason| panic!("{what}: {reason}"));
    for (flow, arrivals) in Flow::ALL.into_iter().zip(arrivals) {
        println!("{what}: {flow}: longest gap {:?}", arrivals.longest_gap(begun, ended));
    }
    assert!(resumed, "{what}: some traffic does not flow again");
}

/// A RoCE transfer between two addresses, by whatever path.
fn transfer(network: &Network, [client, server]: [&str; 2]) {
    let arguments = "ib_write_bw -s 65536 -m 1024 -n 100 -u 18";
    let Transfer { client, server } = network.begin_between(client, server, arguments);
    client.succeed(LIMIT);
    server.succeed(LIMIT);
}

fn kill(one: RunningBox) {
    one.signal(libc::SIGKILL);
    one.program.finish(LIMIT);
}

/// With the XDP program in the driver, which sets up its rings anew without it, or behind it.
fn a_bridge_carries_roce_too(mode: &str) {
    require("ib_write_bw", "perftest");
    let what = "a bridge without its box";
    let Some(network) = has_af_xdp(what).then(|| Network::new(what, 1500)).flatten() else {
        return;
    };
    network.middle.set("link add lhbr0 type bridge");
    for interface in ["west", "east"] {
        network.middle.set(&format!("link set {interface} master lhbr0"));
    }
    network.middle.set("link set lhbr0 addrgenmode none up");
    let start =
        || network.start("accelerate --name box --lan xdp:west,only=roce --wan xdp:east,only=roce");
    let one = start();
    transfer(&network, [LEFT, RIGHT]);
    network.wait_for(&one, "RoCE through the box", |status| {
        status["pairs"][0]["ports"][0]["rx_frames"].as_u64() >= Some(6400)
    });
    gaps(&network, &format!("bridge, {mode}, box killed"), [LEFT, RIGHT], || kill(one));
    assert!(!network.has_xdp_program("west") && !network.has_xdp_program("east"));
    transfer(&network, [LEFT, RIGHT]);
    network.stream(16 << 20);
    let mut again = None;
    gaps(&network, &format!("bridge, {mode}, box started"), [LEFT, RIGHT], || {
        again = Some(start())
    });
    transfer(&network, [LEFT, RIGHT]);
    again.expect("a box").end();
    network.round_trip(RIGHT, 64, 2);
}

#[test]
fn a_bridge_carries_roce_too_once_a_box_in_its_drivers_is_killed() {
    a_bridge_carries_roce_too("native");
}

#[test]
fn a_bridge_carries_roce_too_once_a_box_behind_its_drivers_is_killed() {
    a_bridge_carries_roce_too("generic");
}

#[test]
fn routing_goes_around_a_box_that_is_killed() {
    require("ib_write_bw", "perftest");
    let Some(network) = Network::new("routing around a box", 1500) else { return };
    let hosts = [&network.left, &network.right];
    // The second path, without a box.
    network.left.set("link add alt type veth peer name far");
    network.left.set(&format!("link set far netns {}", network.right.name));
    network.right.set("link set far name alt");
    for (at, host) in hosts.iter().enumerate() {
        let (own, other) = (LOOPBACKS[at], LOOPBACKS[1 - at]);
        host.set(&format!("address add {own}/32 dev lo"));
        host.set(&format!("address add 10.96.0.{}/24 dev alt", at + 1));
        host.set("link set alt up");
        let by_box = [RIGHT, LEFT][at];
        host.set(&format!("route add {other}/32 via {by_box} src {own} metric 10"));
        host.set(&format!("route add {other}/32 via 10.96.0.{} src {own} metric 20", 2 - at));
        host.inside(|| {
            for (name, value) in [
                ("net.ipv4.conf.eth0.ignore_routes_with_linkdown", "1"),
                ("net.ipv4.conf.all.rp_filter", "0"),
                ("net.ipv4.conf.eth0.rp_filter", "0"),
                ("net.ipv4.conf.alt.rp_filter", "0"),
            ] {
                let set = std::process::Command::new("sysctl")
                    .args(["-q", "-w", &format!("{name}={value}")])
                    .status();
                assert!(set.expect("sysctl").success(), "{name}");
            }
        });
    }
    let start = || network.start("accelerate --name box --lan west --wan east");
    let one = start();
    let carried = |at: &RunningBox| {
        network.status(at)["pairs"][0]["ports"][0]["rx_frames"].as_u64().expect("a number")
    };
    transfer(&network, LOOPBACKS);
    network.wait_for(&one, "RoCE through the box", |status| {
        status["pairs"][0]["ports"][0]["rx_frames"].as_u64() >= Some(6400)
    });
    sleep(CALM);
    gaps(&network, "routes, box killed", LOOPBACKS, || kill(one));
    transfer(&network, LOOPBACKS);
    let mut again = None;
    gaps(&network, "routes, box started", LOOPBACKS, || again = Some(start()));
    let again = again.expect("a box");
    let before = carried(&again);
    transfer(&network, LOOPBACKS);
    network.wait_for(&again, "traffic through the box", |status| {
        status["pairs"][0]["ports"][0]["rx_frames"].as_u64() >= Some(before + 6400)
    });
    again.end();
}

/// A bypass NIC's tool: a script that writes its argument to a file.
struct Tool {
    script: String,
    log: PathBuf,
}

impl Tool {
    fn new(network: &Network) -> Self {
        let (script, log) =
            (network.runtime.path().join("tool"), network.runtime.path().join("log"));
        let text = format!("#!/bin/sh\necho $1 >> {}\n", log.display());
        fs::write(&script, text).expect("a script");
        fs::set_permissions(&script, Permissions::from_mode(0o700)).expect("a mode");
        Tool { script: script.display().to_string(), log }
    }

    fn told(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().map(str::to_string).collect()
    }

    fn wait_for(&self, what: &str, is_so: impl Fn(&[String]) -> bool) {
        let start = Instant::now();
        while !is_so(&self.told()) {
            assert!(start.elapsed() < LIMIT, "{what}: {:?}", self.told());
            sleep(MS);
        }
    }
}

/// A box with these commands between `west` and `east`.
fn with_bypass(network: &Network, commands: &str) -> RunningBox {
    let file = network.runtime.path().join("box.toml");
    let text = format!("[[pair]]\nlan = 'west'\nwan = 'east'\n[bypass]\n{commands}\n");
    fs::write(&file, text).expect("a file");
    network.start(&format!("accelerate --name box --config {}", file.display()))
}

#[test]
fn a_bypass_nic_hears_whether_its_box_lives() {
    let Some(network) = Network::new("a bypass NIC", 1500) else { return };
    let tool = Tool::new(&network);
    let command = |what: &str| format!("{what} = '{} {what}'", tool.script);
    let commands = ["armed", "open", "heartbeat"].map(command).join("\n");
    let start = || with_bypass(&network, &format!("{commands}\ninterval = '50ms'"));
    let beats = |told: &[String]| told.iter().filter(|line| *line == "heartbeat").count();
    let one = start();
    tool.wait_for("heartbeats", |told| beats(told) > 3);
    assert_eq!(tool.told()[0], "armed");
    // A box that does nothing sends none.
    one.signal(libc::SIGSTOP);
    sleep(CALM);
    let before = beats(&tool.told());
    sleep(CALM);
    assert_eq!(beats(&tool.told()), before);
    one.signal(libc::SIGCONT);
    tool.wait_for("heartbeats again", |told| beats(told) > before + 3);
    let killed = Instant::now();
    kill(one);
    tool.wait_for("an open bypass", |told| told.last().is_some_and(|line| line == "open"));
    println!("bypass: opened in {:?} after SIGKILL", killed.elapsed());
    // The NIC connects the ports, which stay up.
    network.middle.set("link add lhbr0 type bridge");
    for interface in ["west", "east"] {
        network.middle.set(&format!("link set {interface} master lhbr0"));
    }
    network.middle.set("link set lhbr0 addrgenmode none up");
    network.round_trip(RIGHT, 64, 2);
    network.middle.set("link del lhbr0");
    let opened = |told: &[String]| told.iter().filter(|line| *line == "open").count();
    start().end();
    tool.wait_for("an open bypass after SIGTERM", |told| opened(told) == 2);
}

#[test]
fn commands_that_fail_or_hang_are_told_and_stop_nothing() {
    let Some(network) = Network::new("a bypass NIC that hangs", 1500) else { return };
    let commands = "armed = '/no/such/tool on'\nheartbeat = 'sleep 1000'\nopen = 'false'";
    let mut one = with_bypass(&network, &format!("{commands}\ninterval = '10ms'"));
    one.program.wait_for_output("command 'armed' failed: /no/such/tool: No such file", LIMIT);
    network.stream(1 << 20);
    one.program.wait_for_output("command 'heartbeat' failed: killed, because it ran", LIMIT);
    network.round_trip(RIGHT, 64, 2);
    let ended = one.end();
    assert!(ended.stderr.contains("command 'open' failed: exit status: 1"), "{ended}");
}
