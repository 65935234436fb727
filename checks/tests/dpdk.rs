//! Boxes over DPDK ports. Skipped, loudly, without a `longhaul` built with DPDK: `cargo xtask ci`
//! and `dpdk` build one.

use longhaul_checks::guest::skip_loudly;
use longhaul_checks::network::{LIMIT, Namespace, Network, RIGHT, RunningBox};
use longhaul_checks::packets::every_kind;
use longhaul_checks::{Program, RuntimeDir, Turn, longhaul_with_dpdk, require};
use longhaul_netdev::setting::{Setting, set};
use longhaul_wire::pcap::{self, LinkType, RecordHeader};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const EAL: &str = "--no-huge -m 256";

fn program(what: &str) -> Option<PathBuf> {
    let found = longhaul_with_dpdk();
    if found.is_none() {
        skip_loudly(what, &"cargo xtask ci and dpdk run it");
    }
    found
}

fn longhaul(program: &Path, dir: &RuntimeDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env("XDG_RUNTIME_DIR", dir.path()).env_remove("LD_PRELOAD");
    command
}

fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = pcap::file_header(LinkType::ETHERNET, 65535).to_vec();
    for frame in frames {
        let header = RecordHeader {
            timestamp_ns: 1_700_000_000_000_000_000,
            captured_len: frame.len() as u32,
            original_len: frame.len() as u32,
        };
        file.extend(header.write());
        file.extend(frame);
    }
    file
}

fn frames(file: &Path) -> Vec<Vec<u8>> {
    let file = fs::read(file).expect("a file");
    pcap::records(&file).map(|record| record.expect("a record").data.to_vec()).collect()
}

#[test]
fn a_fibre_between_two_of_them_delivers_every_frame_both_ways() {
    let Some(program) = program("a fibre between ports of DPDK's") else { return };
    let (_turn, dir) = (Turn::take(), RuntimeDir::new());
    let path = |name: &str| dir.path().join(name);
    let there: Vec<Vec<u8>> =
        every_kind().iter().cycle().take(1000).map(|fields| fields.build()).collect();
    let back: Vec<Vec<u8>> =
        (0..500_usize).map(|number| vec![number as u8; 60 + number * 18]).collect();
    fs::write(path("a-in"), capture(&there)).expect("a file");
    fs::write(path("b-in"), capture(&back)).expect("a file");
    let port = |side: &str, number: u8| {
        let (read, write) = (path(&format!("{side}-in")), path(&format!("{side}-out")));
        format!("dpdk:net_pcap{number},rx_pcap={},tx_pcap={}", read.display(), write.display())
    };
    let (a, b) = (port("a", 0), port("b", 1));
    let arguments = ["emulate", "--a", &a, "--b", &b, "--delay", "2ms", "--dpdk-eal", EAL];
    let fibre = Program::start_group(&mut longhaul(&program, &dir, &arguments));
    // The driver writes a block at a time, and the rest when it is closed: the box reports when all
    // frames were sent.
    let sent = || {
        let mut ask = longhaul(&program, &dir, &["box", "status", "emulate", "--json"]);
        let status: Value =
            serde_json::from_str(&Program::start(&mut ask).finish(LIMIT).stdout).ok()?;
        let of = |side: usize| status[0]["pairs"][0]["ports"][side]["tx_frames"].as_u64();
        Some((of(1)?, of(0)?))
    };
    let (deadline, all) = (Instant::now() + LIMIT, (there.len() as u64, back.len() as u64));
    while sent() != Some(all) {
        assert!(Instant::now() < deadline, "{:?} frames of {all:?}", sent());
        std::thread::sleep(Duration::from_millis(50));
    }
    fibre.interrupt_group();
    let ended = fibre.succeed(LIMIT);
    assert!(frames(&path("b-out")) == there, "{ended}");
    assert!(frames(&path("a-out")) == back, "{ended}");
}

#[test]
fn unmodified_programs_run_through_them() {
    require("ib_write_bw", "perftest");
    let Some(program) = program("programs through ports of DPDK's") else { return };
    let Some(network) = Network::new("programs through ports of DPDK's", 1500) else { return };
    for host in [&network.left, &network.right] {
        // The driver does not fill in the checksums that the kernel leaves to a card.
        let off = || Command::new("ethtool").args(["-K", "eth0", "tx", "off"]).output();
        let done =
            host.inside(off).unwrap_or_else(|e| panic!("ethtool: {e}: apt-get install ethtool"));
        assert!(done.status.success(), "{done:?}");
    }
    let file = network.runtime.path().join("fibre.toml");
    let text = format!(
        "[dpdk]\neal = '{EAL}'\n[[pair]]\na = 'dpdk:net_af_packet0,iface=west'\n\
         b = 'dpdk:net_af_packet1,iface=east'\ndelay = '1ms'\n"
    );
    fs::write(&file, text).expect("a file");
    let fibre = network.start_by(&program, &format!("emulate --config {}", file.display()));
    let shortest = network.round_trip(RIGHT, 64, 10);
    assert!(shortest >= Duration::from_millis(2), "{shortest:?}");
    network.transfer("ib_write_bw -R -s 65536 -m 1024 -n 200", || {});
    let status = network.status(&fibre);
    let port = &status["pairs"][0]["ports"][0];
    assert!(port["rx_frames"].as_u64() >= Some(200 * 64), "{status:#}");
    assert_eq!(
        (&port["other"]["tx_stalls"], &port["rx_drops"]["no_buffer"]),
        (&0.into(), &0.into())
    );
    // The fibre held the WRITEs' packets by reference, and sent them from there.
    let other = &status["pairs"][0]["ports"][1]["other"];
    assert!(other["tx_by_reference"].as_u64() >= Some(200 * 64), "{status:#}");
    fibre.end();
}

fn apply(at: &Namespace, interface: &str, setting: Setting) {
    at.inside(|| set(interface, setting)).unwrap_or_else(|e| panic!("{e}"));
}

/// Starts an accelerator between `lan` and `wan`.
fn accelerator(
    network: &Network,
    program: &Path,
    [lan, wan]: [&str; 2],
    options: &str,
) -> RunningBox {
    let file = network.runtime.path().join("box.toml");
    let text = format!("[dpdk]\neal = '{EAL}'\n[[pair]]\nlan = '{lan}'\nwan = '{wan}'\n");
    fs::write(&file, text).expect("a file");
    let arguments = format!("accelerate --name box {options} --config {}", file.display());
    network.start_by(program, &arguments)
}

#[test]
fn a_device_and_an_interface_follow_each_others_carrier() {
    let what = "carriers of a port of DPDK's and an interface";
    let Some(program) = program(what) else { return };
    let Some(network) = Network::new(what, 1500) else { return };
    let ports = ["dpdk:net_tap0,iface=lhdpdk", "east"];
    let one = accelerator(&network, &program, ports, "--keep-privileges");
    let (device, host) = ((&network.middle, "lhdpdk"), (&network.right, "eth0"));
    let both_are_up = || [device, host].map(|(at, name)| at.until_carrier(name, true));
    both_are_up();
    for (index, (lost, name), (other, seen)) in [(0, device, host), (1, host, device)] {
        apply(lost, name, Setting::Down);
        let took = other.until_carrier(seen, false);
        println!("{} lost its carrier: the opposite side saw it in {took:?}", ports[index]);
        network.wait_for(&one, "which took which down", |status| {
            let ports = &status["pairs"][0]["carrier"]["ports"];
            ports[index]["losses"] == 1 && ports[1 - index]["taken_down"].is_string()
        });
        apply(lost, name, Setting::Up);
        both_are_up();
        network.wait_for(&one, "both ports up", |status| {
            let ports = &status["pairs"][0]["carrier"]["ports"];
            (0..2).all(|index| ports[index]["taken_down"].is_null())
        });
    }
    let status = network.status(&one);
    for port in status["pairs"][0]["carrier"]["ports"].as_array().expect("ports") {
        assert_eq!((&port["losses"], &port["takedowns"]), (&1.into(), &1.into()), "{status:#}");
    }
    let ended = one.end();
    for text in [
        "wan port east taken down because of lan port dpdk:net_tap0,iface=lhdpdk: device net_tap0",
        "lan port dpdk:net_tap0,iface=lhdpdk taken down because of wan port east: interface east",
    ] {
        assert!(ended.stderr.contains(text), "{text}: {ended}");
    }
}

#[test]
fn devices_follow_each_other_and_those_that_cannot_say_so() {
    let what = "carriers of ports of DPDK's";
    let Some(program) = program(what) else { return };
    let Some(network) = Network::new(what, 1500) else { return };
    let ports = ["dpdk:net_tap0,iface=lhdpdk0", "dpdk:net_tap1,iface=lhdpdk1"];
    let one = accelerator(&network, &program, ports, "--keep-privileges");
    let middle = &network.middle;
    for (lost, other) in [("lhdpdk0", "lhdpdk1"), ("lhdpdk1", "lhdpdk0")] {
        for name in [lost, other] {
            middle.until_carrier(name, true);
        }
        apply(middle, lost, Setting::Down);
        let took = middle.until_carrier(other, false);
        println!("{lost} of two devices lost its carrier: the other saw it in {took:?}");
        apply(middle, lost, Setting::Up);
        middle.until_carrier(other, true);
    }
    one.end();
    let ports = ["dpdk:net_tap0,iface=lhdpdk", "dpdk:net_af_packet0,iface=east"];
    let one = accelerator(&network, &program, ports, "");
    middle.until_carrier("lhdpdk", true);
    apply(middle, "lhdpdk", Setting::Down);
    network.wait_for(&one, "a loss", |status| {
        status["pairs"][0]["carrier"]["ports"][0]["losses"] == 1
    });
    let status = network.status(&one);
    let other = &status["pairs"][0]["carrier"]["ports"][1];
    assert_eq!((&other["takedowns"], &other["taken_down"]), (&0.into(), &Value::Null));
    network.right.until_carrier("eth0", true);
    let ended = one.end();
    for told in [
        "cannot set the link of port net_tap0: net_tap needs the privileges",
        "cannot set the link of port net_af_packet0: net_af_packet cannot; name its interface",
    ] {
        assert_eq!(ended.stderr.matches(told).count(), 1, "{told}: {ended}");
    }
}

#[test]
fn what_cannot_be_had_is_told_in_one_line_with_its_cure() {
    let Some(program) = program("ports of DPDK's that cannot be had") else { return };
    let (_turn, dir) = (Turn::take(), RuntimeDir::new());
    for (port, eal, more, words) in [
        ("dpdk:net_nosuch0", EAL, "--dpdk-queues=1", ["net_nosuch0", "apt-get install"]),
        ("dpdk:ffff:ff:1f.7", EAL, "--dpdk-queues=1", ["no PCI device", "dpdk-devbind.py"]),
        ("dpdk:net_memif7", EAL, "--dpdk-queues=2", ["has 1 receive queue,", "--dpdk-queues=1"]),
        (
            "dpdk:net_ring7",
            EAL,
            "--dpdk-queues=2",
            ["does not spread frames", "--dpdk-spread=device"],
        ),
        (
            "dpdk:net_null7",
            "--no-huge -m 64",
            "--dpdk-lent=65535",
            ["no memory for", "--dpdk-eal='-m"],
        ),
        ("dpdk:net_null7", EAL, "--dpdk-mtu=20000", ["the MTU is 20000", "68 to 16362"]),
        (
            "dpdk:net_null7",
            "--no-huge --nonsense",
            "--dpdk-queues=1",
            ["DPDK does not start", "--nonsense"],
        ),
    ] {
        let arguments = ["emulate", "--a", port, "--b", "lo", "--dpdk-eal", eal, more];
        let done = Program::start(&mut longhaul(&program, &dir, &arguments)).finish(LIMIT);
        assert!(!done.status.success(), "{done}");
        // DPDK first prints its own messages about its arguments.
        let line = done.stderr.trim().lines().next_back().unwrap_or_default();
        assert!(words.iter().all(|word| line.contains(word)), "{done}");
    }
}

#[test]
fn a_program_that_was_built_without_dpdk_says_how_to_build_one_with_it() {
    let (_turn, dir) = (Turn::take(), RuntimeDir::new());
    let arguments = ["emulate", "--a", "dpdk:net_null0", "--b", "dpdk:net_null1"];
    let done =
        Program::start(&mut longhaul(&longhaul_checks::longhaul(), &dir, &arguments)).finish(LIMIT);
    assert!(!done.status.success(), "{done}");
    assert!(
        done.stderr.contains("--features dpdk") && done.stderr.contains("libdpdk-dev"),
        "{done}"
    );
}
