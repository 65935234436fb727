//! Boxes over AF_XDP ports, between hosts in network namespaces of this machine. Skipped, loudly,
//! if namespaces or AF_XDP are unavailable.

use longhaul_checks::network::{LIMIT, Network, RIGHT, RIGHT_6, Raw, RunningBox, has_af_xdp};
use longhaul_checks::{Program, require, wait_for_listener};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// A network for boxes with AF_XDP ports.
fn network(what: &str, mtu: u32) -> Option<Network> {
    has_af_xdp(what).then(|| Network::new(what, mtu)).flatten()
}

/// Accelerators around a fibre, with AF_XDP ports with these options.
fn chain(network: &Network, options: &str) -> [RunningBox; 3] {
    let port = |name: &str| format!("xdp:{name}{options}");
    let [west, w1, w2, e2, e1, east] = ["west", "w1", "w2", "e2", "e1", "east"].map(port);
    [
        network.start(&format!(
            "accelerate --name near --lan {west} --wan {w1} --rate 1G --distance 1000km"
        )),
        network.start(&format!("emulate --a {w2} --b {e2} --distance 1000km --rate 1G")),
        network.start(&format!(
            "accelerate --name far --lan {east} --wan {e1} --rate 1G --distance 1000km"
        )),
    ]
}

fn ports(status: &Value) -> &Vec<Value> {
    status["pairs"][0]["ports"].as_array().expect("ports")
}

/// iperf3's port.
const IPERF3_PORT: u16 = 5201;

/// Throughput of iperf3 over TCP from left to right for a second, in bit/s.
fn iperf3(network: &Network) -> f64 {
    let command = |host: &longhaul_checks::network::Namespace, arguments: &[&str]| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &host.name, "iperf3"]).args(arguments);
        Program::start(&mut command)
    };
    let server = wait_for_listener(command(&network.right, &["-s", "-1"]), IPERF3_PORT);
    let client = command(&network.left, &["-c", RIGHT, "-t", "1", "-J"]).succeed(LIMIT);
    server.succeed(LIMIT);
    let report: Value = serde_json::from_str(&client.stdout).expect("JSON");
    report["end"]["sum_received"]["bits_per_second"].as_f64().expect("a rate")
}

/// Checks that everything passes, and that RoCEv2 is accelerated.
fn carries_and_accelerates(mtu: u32, options: &str, is_native: bool) {
    require("ib_write_bw", "perftest");
    require("iperf3", "iperf3");
    let Some(network) = network("boxes over AF_XDP ports", mtu) else { return };
    if !is_native {
        // In native mode the kernel does that. TCP segments are left for the box to split.
        network.cut_datagrams_at_hosts();
    }
    let boxes = chain(&network, options);
    for to in [RIGHT, RIGHT_6] {
        let shortest = network.round_trip(to, 64, 10);
        assert!(shortest >= Duration::from_millis(10), "{to}: {shortest:?}");
    }
    network.round_trip(RIGHT, mtu as usize - 28, 2);
    network.stream(16 << 20);
    // A connection that stalls for each lost segment is slower, however idle the machine is.
    assert!((0..10).any(|_| iperf3(&network) > 10e6), "10 Mbit/s at most");
    let (left, right) = (Raw::open(&network.left, "eth0"), Raw::open(&network.right, "eth0"));
    for header in [&[0x88_u8, 0xb5][..], &[0x81, 0, 0x60, 5, 0x88, 0xb5], &[0x88, 0xcc]] {
        let len = mtu as usize + 14 + if header[0] == 0x81 { 4 } else { 0 };
        let mut sent = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 7], header].concat();
        sent.extend((sent.len()..len).map(|at| at as u8));
        left.send(&sent);
        let came = right.receive(|came| came.get(6..12) == sent.get(6..12));
        assert!(came == sent, "{:x?} came as {:x?}", &sent[..24], &came[..24.min(came.len())]);
    }
    let roce_mtu = if mtu > 4200 { 4096 } else { 1024 };
    network.transfer(&format!("ib_write_bw -R -s 65536 -m {roce_mtu} -n 400"), || {});
    let near = network.status(&boxes[0]);
    let counters = &near["pairs"][0]["accelerator"]["counters"];
    // On a busy machine hosts respond late, and a flow may end up passing.
    let count = |name: &str| counters[name].as_u64().expect("a number");
    assert!(count("stored_packets") > 0 && count("pseudo_acks") > 0, "{near:#}");
    assert!(count("stored_packets") + count("passed") >= 400 * 65536 / roce_mtu, "{near:#}");
    for one in &boxes {
        let status = network.status(one);
        for port in ports(&status) {
            let manner = port["manner"].as_str().expect("a manner");
            assert_eq!(manner.starts_with("native"), is_native, "{status:#}");
            // Other drops result from a machine that is too busy.
            for drop in ["not_splittable", "frame_too_long", "frame_too_short"] {
                assert_eq!(port["rx_drops"][drop], 0, "{drop}: {status:#}");
            }
            assert_eq!(
                (&port["other"]["tx_stalls"], &port["peer_violations"]),
                (&0.into(), &0.into())
            );
        }
    }
    let lan = &ports(&near)[0]["other"];
    assert!(
        lan["rx_checksums_filled"].as_u64() > Some(0),
        "hosts leave no checksum open: {near:#}"
    );
    assert_eq!(lan["rx_split"].as_u64() > Some(0), !is_native, "{near:#}");
    for one in boxes {
        one.end();
    }
    assert!(!network.has_xdp_program("west"));
}

#[test]
fn in_native_mode_carry_everything_and_accelerate() {
    carries_and_accelerates(1500, "", true);
}

#[test]
fn in_native_mode_carry_frames_over_several_buffers() {
    carries_and_accelerates(9000, ",native", true);
}

#[test]
fn in_generic_mode_carry_everything_and_accelerate() {
    carries_and_accelerates(1500, ",generic", false);
}

#[test]
fn in_generic_mode_carry_frames_over_several_buffers() {
    carries_and_accelerates(9000, ",generic", false);
}

#[test]
fn survive_cables_that_are_pulled() {
    let Some(network) = network("cables that are pulled", 1500) else { return };
    let fibre = network.start("emulate --a xdp:west --b xdp:east --distance 10km");
    network.round_trip(RIGHT, 64, 2);
    network.pull_cables(&fibre);
    let ended = fibre.end();
    for (line, count) in
        [("a port xdp:west went down", 2), ("b port xdp:east went down", 1), ("is up", 5)]
    {
        assert_eq!(ended.stderr.matches(line).count(), count, "{line}: {ended}");
    }
}

#[test]
fn leave_nothing_behind_when_they_are_killed() {
    let Some(network) = network("a box that is killed", 1500) else { return };
    let ports = "emulate --a xdp:west --b xdp:east --delay 1ms";
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let fibre = network.start(ports);
        network.round_trip(RIGHT, 64, 2);
        assert!(network.has_xdp_program("west") && network.has_xdp_program("east"));
        fibre.signal(signal);
        fibre.program.finish(LIMIT);
        assert!(!network.has_xdp_program("west") && !network.has_xdp_program("east"));
    }
    // The queues are free again.
    network.start(ports).end();
}

#[test]
fn that_want_roce_alone_leave_all_else_to_a_bridge() {
    require("ib_write_bw", "perftest");
    let Some(network) = network("a box beside a bridge", 1500) else { return };
    network.middle.set("link add lhbr0 type bridge");
    for interface in ["west", "east"] {
        network.middle.set(&format!("link set {interface} master lhbr0"));
    }
    network.middle.set("link set lhbr0 addrgenmode none up");
    let fibre = network.start("emulate --a xdp:west,only=roce --b xdp:east,only=roce --delay 5ms");
    // By the fibre it takes 10 ms.
    let is_bridged = |_| network.round_trip(RIGHT, 64, 50) < Duration::from_millis(10);
    assert!((0..20).any(is_bridged), "not by the bridge");
    network.stream(16 << 20);
    let carried = |status: &Value| ports(status)[0]["rx_frames"].as_u64().expect("a number");
    assert_eq!(carried(&network.status(&fibre)), 0);
    network.transfer("ib_write_bw -s 65536 -m 1024 -n 100 -u 18", || {});
    // The status is as old as the thread's last update.
    network.wait_for(&fibre, "RoCE through the fibre", |status| carried(status) >= 100 * 64);
    fibre.end();
}

#[test]
fn that_cannot_be_opened_say_why_in_a_line() {
    let Some(network) = network("AF_XDP ports that cannot be opened", 1500) else { return };
    network.middle.set("link add lhbr0 type bridge");
    for (port, parts) in [
        ("xdp:nothere0", ["no interface nothere0", "west"]),
        ("xdp:lhbr0,native", ["refuses native mode", "generic"]),
        ("xdp:west,native,zerocopy", ["no zero copy", "zerocopy"]),
        ("xdp:west,queues=64", ["queues=", "ethtool -L west"]),
        ("xdp:west,fast", ["'fast' is not an option", "queues=N"]),
    ] {
        let mut command =
            network.middle.longhaul(&network.runtime, &format!("emulate --a {port} --b tap:lhq"));
        let done = Program::start(&mut command).finish(LIMIT);
        assert!(!done.status.success(), "{port}: {done}");
        assert!(parts.iter().all(|part| done.stderr.contains(part)), "{port}: {done}");
    }
}
