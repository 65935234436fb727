//! Ports of accelerators that follow each other's carrier, between hosts in network namespaces of
//! this machine. Skipped, loudly, if namespaces cannot be created.

use longhaul_checks::network::{LIMIT, Namespace, Network, RIGHT, RunningBox, has_af_xdp};
use longhaul_checks::{Program, RuntimeDir, kill};
use longhaul_netdev::setting::{Setting, set};
use longhaul_netdev::watch::{Presence, Watch};
use serde_json::Value;
use std::thread::sleep;
use std::time::Duration;

/// Carrier losses that Linux reports, for one interface per second at most, are waited for once.
const CALM: Duration = Duration::from_millis(1100);
const MS: Duration = Duration::from_millis(1);

fn apply(at: &Namespace, interface: &str, setting: Setting) {
    at.inside(|| set(interface, setting)).unwrap_or_else(|e| panic!("{e}"));
}

/// The carrier of port `index`, as the status has it.
fn port(status: &Value, index: usize) -> Value {
    status["pairs"][0]["carrier"]["ports"][index].clone()
}

fn both_have_carriers(network: &Network) {
    for host in [&network.left, &network.right] {
        host.until_carrier("eth0", true);
    }
    network.round_trip(RIGHT, 64, 2);
}

fn follow_in_both_directions(network: &Network, ports: &str) -> RunningBox {
    let follower = network.start(&format!("accelerate --name box {ports}"));
    both_have_carriers(network);
    for (index, lost, other) in
        [(0, &network.left, &network.right), (1, &network.right, &network.left)]
    {
        sleep(CALM);
        apply(lost, "eth0", Setting::Down);
        let took = other.until_carrier("eth0", false);
        println!("{ports}: port {index} lost its carrier: the opposite host saw it in {took:?}");
        network.wait_for(&follower, "which took which down", |status| {
            let why = &port(status, 1 - index)["taken_down"];
            let (lost, taken) = (port(status, index)["losses"].clone(), why.as_str());
            lost == 1 && taken.is_some_and(|why| why.contains("has no carrier"))
        });
        apply(lost, "eth0", Setting::Up);
        both_have_carriers(network);
    }
    let status = network.status(&follower);
    for index in [0, 1] {
        let port = port(&status, index);
        assert_eq!((&port["losses"], &port["takedowns"]), (&1.into(), &1.into()), "{status:#}");
        assert_eq!(port["taken_down"], Value::Null, "{status:#}");
    }
    follower
}

#[test]
fn a_loss_passes_to_the_other_side_and_so_does_the_return() {
    let Some(network) = Network::new("carriers that follow", 1500) else { return };
    let follower = follow_in_both_directions(&network, "--lan west --wan east");
    let ended = follower.end();
    for text in [
        "wan port east taken down because of lan port west: interface west has no carrier",
        "wan port east brought up again: lan port west has its carrier",
        "lan port west taken down because of wan port east: interface east has no carrier",
        "west, east taken down: the box ends",
    ] {
        assert!(ended.stderr.contains(text), "{text}: {ended}");
    }
}

#[test]
fn a_loss_passes_between_ports_of_af_xdp() {
    let what = "carriers of AF_XDP ports";
    let Some(network) = has_af_xdp(what).then(|| Network::new(what, 1500)).flatten() else {
        return;
    };
    network.cut_datagrams_at_hosts();
    follow_in_both_directions(&network, "--lan xdp:west --wan xdp:east").end();
    // The ports are set down: the next box brings them up.
    network.start("accelerate --name again --lan xdp:west --wan xdp:east").end();
}

#[test]
fn a_tap_device_loses_its_carrier_and_keeps_its_addresses() {
    let Some(network) = Network::new("the carrier of a TAP device", 1500) else { return };
    network.middle.set("tuntap add lhtap mode tap");
    network.middle.set("address add 10.98.0.1/24 dev lhtap");
    network.middle.set("link set lhtap up");
    let follower = network.start("accelerate --name box --lan tap:lhtap --wan east");
    network.middle.until_carrier("lhtap", true);
    sleep(CALM);
    apply(&network.right, "eth0", Setting::Down);
    let took = network.middle.until_carrier("lhtap", false);
    println!("the host behind a TAP device saw a loss in {took:?}");
    apply(&network.right, "eth0", Setting::Up);
    network.middle.until_carrier("lhtap", true);
    // And the other way round.
    network.middle.set("link set lhtap down");
    network.right.until_carrier("eth0", false);
    network.middle.set("link set lhtap up");
    network.right.until_carrier("eth0", true);
    follower.end();
}

#[test]
fn a_box_that_ends_has_no_carrier_and_one_that_starts_has() {
    let Some(network) = Network::new("carriers at the end of a box", 1500) else { return };
    let ports = "accelerate --name box --lan west --wan east";
    for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGKILL] {
        let one = network.start(ports);
        both_have_carriers(&network);
        sleep(CALM);
        one.signal(signal);
        let took = [&network.left, &network.right].map(|host| host.until_carrier("eth0", false));
        println!("signal {signal}: the hosts saw the end in {took:?}");
        one.program.finish(LIMIT);
    }
    // Started at once after one that was killed, it is up in the end.
    let mut killed = network.start(ports);
    killed.signal(libc::SIGKILL);
    killed.program.wait(LIMIT);
    let next = network.start(ports);
    both_have_carriers(&network);
    killed.program.finish(LIMIT);
    next.end();
}

#[test]
fn two_ports_that_lose_their_carriers_never_wait_for_each_other() {
    let Some(network) = Network::new("two losses", 1500) else { return };
    let follower = network.start("accelerate --name box --lan west --wan east");
    both_have_carriers(&network);
    let (left, right) = (&network.left, &network.right);
    for (first, second) in [(left, right), (right, left)] {
        for host in [&network.left, &network.right] {
            apply(host, "eth0", Setting::Down);
        }
        network.wait_for(&follower, "a port taken down", |status| {
            (0..2).any(|index| !port(status, index)["taken_down"].is_null())
        });
        apply(first, "eth0", Setting::Up);
        sleep(CALM);
        apply(second, "eth0", Setting::Up);
        both_have_carriers(&network);
    }
    follower.end();
}

#[test]
fn a_port_that_flaps_stalls_nothing_and_is_right_in_the_end() {
    let Some(network) = Network::new("a port that flaps", 1500) else { return };
    for (near, far) in [("f1", "f2"), ("g1", "g2")] {
        network.middle.set(&format!("link add {near} type veth peer name {far}"));
        for end in [near, far] {
            network.middle.set(&format!("link set {end} addrgenmode none up"));
        }
    }
    let ports = "--lan west --wan east --lan f1 --wan g1";
    let follower = network.start(&format!("accelerate --name box {ports}"));
    both_have_carriers(&network);
    let flaps = 300;
    std::thread::scope(|scope| {
        let flapping = scope.spawn(|| {
            network.middle.inside(|| {
                for _ in 0..flaps {
                    for setting in [Setting::Down, Setting::Up] {
                        set("f2", setting).expect("set");
                        sleep(5 * MS);
                    }
                }
            });
        });
        // The other pair of the same box goes on.
        let mut longest = Duration::ZERO;
        while !flapping.is_finished() {
            longest = longest.max(network.round_trip(RIGHT, 64, 1));
            network.stream(1 << 20);
        }
        println!("longest round trip beside {flaps} flaps: {longest:?}");
    });
    network.middle.until_carrier("g2", true);
    network.wait_for(&follower, "the last state", |status| {
        let ports = &status["pairs"][1]["carrier"]["ports"];
        ports[1]["takedowns"].as_u64() > Some(0) && ports[1]["taken_down"].is_null()
    });
    let status = network.status(&follower);
    let takedowns = status["pairs"][1]["carrier"]["ports"][1]["takedowns"].as_u64();
    println!("{flaps} flaps took the opposite port down {takedowns:?} times");
    assert!(takedowns < Some(flaps / 4), "{status:#}");
    apply(&network.middle, "f2", Setting::Down);
    network.middle.until_carrier("g2", false);
    follower.end();
}

#[test]
fn ports_that_do_not_follow_stay_up() {
    let Some(network) = Network::new("carriers that do not follow", 1500) else { return };
    let ports = "accelerate --name box --carrier off --lan west --wan east";
    let one = network.start(ports);
    apply(&network.left, "eth0", Setting::Down);
    network
        .wait_for(&one, "a loss", |status| status["pairs"][0]["ports"][0]["link_is_up"] == false);
    assert_eq!(network.status(&one)["pairs"][0]["carrier"], Value::Null);
    network.right.until_carrier("eth0", true);
    apply(&network.left, "eth0", Setting::Up);
    one.signal(libc::SIGKILL);
    one.program.finish(LIMIT);
    sleep(CALM);
    for host in [&network.left, &network.right] {
        host.until_carrier("eth0", true);
    }
}

#[test]
fn an_interface_with_an_address_is_never_set_down() {
    let Some(network) = Network::new("a port with an address", 1500) else { return };
    network.middle.set("address add 10.98.0.1/24 dev west");
    let one = network.start("accelerate --name box --lan west --wan east");
    both_have_carriers(&network);
    sleep(CALM);
    one.signal(libc::SIGTERM);
    network.right.until_carrier("eth0", false);
    one.program.finish(LIMIT);
    network.left.until_carrier("eth0", true);
}

#[test]
fn a_side_that_is_held_down_stays_so_when_the_box_is_replaced() {
    let Some(network) = Network::new("a box that is replaced with a side down", 1500) else {
        return;
    };
    let arguments = "accelerate --name box --lan west --wan east";
    let old = network.start(arguments);
    both_have_carriers(&network);
    apply(&network.left, "eth0", Setting::Down);
    network.right.until_carrier("eth0", false);
    let mut new = Program::start(
        &mut network.middle.longhaul(&network.runtime, &format!("{arguments} --replace")),
    );
    new.wait_for_output("took over from process", LIMIT);
    old.program.succeed(LIMIT);
    let new = RunningBox { program: new, name: "box".to_string() };
    network.wait_for(&new, "which side is down", |status| {
        port(status, 1)["taken_down"] != Value::Null
    });
    // Brought up, it would have 10 s.
    let presence = network.right.inside(|| Watch::new("eth0")).expect("a watch").look(None);
    let is_down = matches!(presence, Some(Presence::Present { is_running: false, .. }));
    assert!(is_down, "{presence:?}");
    let other = format!("{arguments} --carrier off --replace");
    let refused = Program::start(&mut network.middle.longhaul(&network.runtime, &other));
    let refused = refused.finish(LIMIT);
    assert!(refused.stderr.contains("replace it once both are up"), "{refused}");
    apply(&network.left, "eth0", Setting::Up);
    both_have_carriers(&network);
    new.end();
}

/// The processes that are there: the box, as nobody, and its guard, which keeps one capability.
#[test]
fn a_guard_has_one_privilege() {
    let Some(network) = Network::new("the privileges of a guard", 1500) else { return };
    let one = network.start("accelerate --name box --lan west --wan east");
    let guard = one.guard();
    let status = std::fs::read_to_string(format!("/proc/{guard}/status")).expect("a process");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        line.split_whitespace().map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(field("CapPrm:"), ["0000000000001000"], "{status}");
    assert_eq!(field("NoNewPrivs:"), ["1"], "{status}");
    assert!(!field("Uid:").contains(&"0".to_string()), "{status}");
    one.end();
}

/// As a service whose processes are all killed: its unit then takes the ports down.
#[test]
fn ports_of_a_box_that_died_with_its_guard_are_taken_down_by_a_command() {
    let Some(network) = Network::new("a box and its guard killed", 1500) else { return };
    let file = network.runtime.path().join("box.toml");
    std::fs::write(&file, "[[pair]]\nlan = 'west'\nwan = 'east'\n").expect("a file");
    let start = || network.start(&format!("accelerate --name box --config {}", file.display()));
    let down = || {
        let arguments = format!("accelerate down --config {}", file.display());
        Program::start(&mut network.middle.longhaul(&network.runtime, &arguments)).finish(LIMIT)
    };
    let mut one = start();
    kill(one.guard(), libc::SIGKILL);
    one.program.wait_for_output("the carrier guard has ended", LIMIT);
    both_have_carriers(&network);
    let refused = down();
    assert!(!refused.status.success() && refused.stderr.contains("has it"), "{refused}");
    one.signal(libc::SIGKILL);
    one.program.finish(LIMIT);
    for host in [&network.left, &network.right] {
        host.until_carrier("eth0", true);
    }
    let done = down();
    assert!(done.status.success(), "{done}");
    assert_eq!(done.stdout, "west is down\neast is down\n", "{done}");
    for host in [&network.left, &network.right] {
        host.until_carrier("eth0", false);
    }
    let next = start();
    both_have_carriers(&network);
    next.end();
}

/// Nobody else starts it.
#[test]
fn a_guard_that_no_box_has_started_ends_with_a_line() {
    let mut command = RuntimeDir::new().longhaul("carrier-guard");
    let done = Program::start(&mut command).finish(LIMIT);
    assert!(!done.status.success() && done.stderr.contains("starts its guard itself"), "{done}");
}
