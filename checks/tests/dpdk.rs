//! Boxes over DPDK ports. Skipped, loudly, without a `longhaul` built with DPDK: `cargo xtask ci`
//! and `dpdk` build one.

use longhaul_checks::guest::skip_loudly;
use longhaul_checks::network::{LIMIT, Network, RIGHT};
use longhaul_checks::packets::every_kind;
use longhaul_checks::{Program, RuntimeDir, Turn, longhaul_with_dpdk, require};
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
