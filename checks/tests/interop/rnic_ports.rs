//! Our device with the kernel's rxe on every port type, and with edge cases of the verbs, for which
//! `src/bin/verbs_probe` checks every byte and every completion. Skipped, loudly, if no guest is
//! available.

use longhaul_checks::Turn;
use longhaul_checks::guest::skip_loudly;
use longhaul_checks::interop::{Exchange, Family, Port, RxePeer};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(180);
const BOTH: [Family; 2] = [Family::V4, Family::V6];
/// Scenarios that must succeed whatever the segment does to frames.
const UNDER_LOSS: &str = "--only every_length_mtu,psn_wrap_,rnr_until";

/// Every kind of program; the first ones suffice to show that a port works.
const PROGRAMS: [&str; 14] = [
    "ib_send_bw -s 2000 -n 100 -c UD",
    "ib_write_bw -s 65536 -n 50",
    "ib_read_bw -s 65536 -n 50",
    "ib_send_bw -s 4096 -n 100 -b",
    "ib_send_bw -s 1000 -n 100 -c UC",
    "ib_send_bw -s 5000 -n 100 --use-srq -q 2",
    "ib_atomic_bw -A FETCH_AND_ADD -n 50",
    "ib_write_bw -s 8388608 -n 5 -m 2048",
    "ib_write_lat -s 2 -n 50",
    "ib_read_lat -s 300 -n 50 -m 256",
    "ib_send_lat -s 2 -n 50 -e",
    "ib_send_lat -s 100 -n 50 -c UD",
    "ib_atomic_lat -A CMP_AND_SWAP -n 50",
    "ib_send_bw -s 10000 -n 50 -m 512 -q 4",
];
/// By RDMA-CM perftest supports only IPv4.
const BY_CM: [&str; 2] = ["ib_write_bw -s 65536 -n 50 -R", "ib_send_bw -s 4096 -n 100 -R"];
const RPING: &str = "-C 10 -S 3000 -V";

fn boot(name: &str) -> Option<RxePeer> {
    RxePeer::boot(name, Some(Path::new(env!("CARGO_BIN_EXE_verbs_probe"))))
        .inspect_err(|reason| skip_loudly("our device against rxe on every port", reason))
        .ok()
}

/// An emulated machine may wait long for a processor, hence a timeout of 1 s.
fn patient(line: &str) -> Exchange {
    Exchange::perftest(&format!("{line} -u 18"))
}

fn none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} went wrong:\n{}", wrong.len(), wrong.join("\n\n"));
}

#[test]
fn edges_of_the_verbs_hold_both_ways() {
    let _turn = Turn::take();
    let Some(peer) = boot("e") else { return };
    let mut wrong = peer.failures([Exchange::probe("")], Port::Tap, &BOTH, LIMIT);
    for port in [Port::Udp, Port::TaggedTap, Port::Interface, Port::SharedInterface] {
        wrong.extend(peer.failures(
            [Exchange::probe("--only mtu_1024,messages_ud,key")],
            port,
            &BOTH,
            LIMIT,
        ));
    }
    wrong.extend(peer.failures([Exchange::rping(RPING)], Port::Tap, &BOTH, LIMIT));
    wrong.extend(peer.failures([patient(PROGRAMS[0])], Port::Interface, &BOTH, LIMIT));
    wrong.extend(under_loss(
        &peer,
        ["--loss 0.01 --distance 100km"],
        ["loss 1% reorder 5% delay 1ms"],
        1,
    ));
    none(&wrong);
}

/// Our fibre loses in both directions. The guest's netem affects only what the guest sends:
/// requests or their acknowledgements.
fn under_loss<const F: usize, const N: usize>(
    peer: &RxePeer,
    fibres: [&str; F],
    netems: [&str; N],
    times: u32,
) -> Vec<String> {
    let exchange = || [Exchange::probe(&format!("{UNDER_LOSS} --times {times}"))];
    let mut wrong = Vec::new();
    for fibre in fibres {
        let _fibre = peer.fibre(fibre);
        let failed = peer.failures(exchange(), Port::Tap, &[Family::V4], LIMIT);
        wrong.extend(failed.into_iter().map(|text| format!("fibre {fibre}: {text}")));
    }
    for netem in netems {
        let _netem = peer.netem(netem);
        let failed = peer.failures(exchange(), Port::Tap, &[Family::V4], LIMIT);
        wrong.extend(failed.into_iter().map(|text| format!("netem {netem}: {text}")));
    }
    wrong
}

/// All programs, on `port`.
fn every_program_runs(port: Port) {
    let _turn = Turn::take();
    let Some(peer) = boot("a") else { return };
    let mut wrong = peer.failures([Exchange::probe("")], port, &BOTH, LIMIT);
    wrong.extend(peer.failures(PROGRAMS.map(patient), port, &BOTH, LIMIT));
    wrong.extend(peer.failures(BY_CM.map(Exchange::perftest), port, &[Family::V4], LIMIT));
    wrong.extend(peer.failures([Exchange::rping(RPING)], port, &BOTH, LIMIT));
    none(&wrong);
}

#[test]
#[ignore = "takes minutes: cargo xtask interop"]
fn every_program_runs_on_a_tap() {
    every_program_runs(Port::Tap);
}

#[test]
#[ignore = "takes minutes: cargo xtask interop"]
fn every_program_runs_in_a_vlan() {
    every_program_runs(Port::TaggedTap);
}

#[test]
#[ignore = "takes minutes: cargo xtask interop"]
fn every_program_runs_on_an_interface() {
    every_program_runs(Port::Interface);
}

#[test]
#[ignore = "takes minutes: cargo xtask interop"]
fn every_program_runs_on_an_interface_that_it_shares() {
    every_program_runs(Port::SharedInterface);
}

#[test]
#[ignore = "takes minutes: cargo xtask interop"]
fn every_byte_survives_much_loss_and_reordering() {
    let _turn = Turn::take();
    let Some(peer) = boot("l") else { return };
    let fibres = [
        "--loss 0.01",
        "--loss 0.01 --distance 1000km --rate 1G",
        "--loss 0.03",
        "--reorder 0.05 --reorder-delay 2ms",
        "--duplicate 0.01 --corrupt 0.01",
    ];
    let netems = [
        "loss 1%",
        "loss 3%",
        "duplicate 1%",
        "delay 2ms reorder 25%",
        "delay 5ms 5ms loss 1% duplicate 1%",
    ];
    none(&under_loss(&peer, fibres, netems, 3));
}
