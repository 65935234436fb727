//! Our device with the kernel's rxe, each as the server and as the client of the other. Skipped,
//! loudly, if no guest is available.

use longhaul_checks::Turn;
use longhaul_checks::guest::skip_loudly;
use longhaul_checks::interop::{Exchange, Family, Port, RxePeer};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);
const BOTH: [Family; 2] = [Family::V4, Family::V6];

/// perftest's lines without RDMA-CM: every transport and operation of rxe, sizes up to 8 MiB, every
/// path MTU.
const PERFTEST: [&str; 17] = [
    "ib_write_bw -s 65536 -n 50",
    "ib_write_bw -s 8388608 -n 5",
    "ib_write_bw -c UC -s 20000 -n 50 -m 1024",
    "ib_write_lat -s 2 -n 50",
    "ib_read_bw -s 65536 -n 50",
    "ib_read_bw -s 8388608 -n 5 -m 2048",
    "ib_read_lat -s 300 -n 50 -m 256",
    "ib_send_bw -s 4096 -n 100 -b",
    "ib_send_bw -s 10000 -n 50 -m 512 -q 4",
    "ib_send_bw -s 1000 -n 100 -c UC",
    "ib_send_bw -s 2048 -n 100 -c UD",
    "ib_send_bw -s 5000 -n 100 --use-srq -q 2",
    "ib_send_lat -s 2 -n 50 -e",
    "ib_send_lat -s 100 -n 50 -c UD",
    "ib_atomic_bw -A FETCH_AND_ADD -n 50",
    "ib_atomic_bw -A CMP_AND_SWAP -n 50",
    "ib_write_bw -s 1 -n 50 -l 10",
];

/// By RDMA-CM, for which perftest supports only IPv4.
const BY_CM: [&str; 5] = [
    "ib_write_bw -s 65536 -n 50 -R",
    "ib_send_bw -s 4096 -n 100 -R",
    "ib_send_bw -s 2048 -n 100 -R -c UD",
    "ib_read_lat -s 300 -n 50 -R",
    "ib_atomic_lat -n 50 -R",
];

const PINGPONG: [&str; 5] = [
    "ibv_rc_pingpong -n 50",
    "ibv_rc_pingpong -n 50 -s 20000 -m 1024 -e",
    "ibv_uc_pingpong -n 50",
    "ibv_ud_pingpong -n 50",
    "ibv_srq_pingpong -n 50 -q 4",
];

const RPING: [&str; 2] = ["-C 10 -S 100 -V", "-C 5 -S 60000 -V"];

#[test]
fn every_program_runs_between_the_two() {
    let _turn = Turn::take();
    let peer = match RxePeer::boot("r", None) {
        Ok(peer) => peer,
        Err(reason) => return skip_loudly("our device against rxe", &reason),
    };
    // Addresses make no difference to the transports: only half of the lines also run over IPv6.
    let (both, by_ipv4) = PERFTEST.split_at(PERFTEST.len() / 2);
    // An emulated machine may wait long for a processor, hence a timeout of 1 s.
    let patient = |line: &&str| Exchange::perftest(&format!("{line} -u 18"));
    let perftest = |lines: &[&str]| lines.iter().map(patient).collect::<Vec<_>>();
    let mut wrong = peer.failures(perftest(both), Port::Udp, &BOTH, LIMIT);
    wrong.extend(peer.failures(perftest(by_ipv4), Port::Udp, &[Family::V4], LIMIT));
    wrong.extend(peer.failures(BY_CM.map(Exchange::perftest), Port::Udp, &[Family::V4], LIMIT));
    wrong.extend(peer.failures(PINGPONG.map(Exchange::pingpong), Port::Udp, &BOTH, LIMIT));
    wrong.extend(peer.failures(RPING.map(Exchange::rping), Port::Udp, &BOTH, LIMIT));
    loses_and_reorders(&peer, &mut wrong);
    assert!(wrong.is_empty(), "{} went wrong:\n{}", wrong.len(), wrong.join("\n\n"));
}

/// 1 % loss and reordering of what the guest sends, by the kernel's netem; both directions suffer,
/// because requests and their acknowledgements cross.
fn loses_and_reorders(peer: &RxePeer, wrong: &mut Vec<String>) {
    for netem in ["loss 1%", "delay 2ms reorder 25%", "duplicate 1%"] {
        let _netem = peer.netem(netem);
        let lines = [
            "ib_write_bw -s 65536 -n 40",
            "ib_read_bw -s 65536 -n 40",
            "ib_send_bw -s 65536 -n 40",
        ];
        let exchanges = lines.map(|line| Exchange::perftest(&format!("{line} -u 15")));
        let failed = peer.failures(exchanges, Port::Udp, &[Family::V4], LIMIT);
        wrong.extend(failed.into_iter().map(|text| format!("netem {netem}: {text}")));
    }
}
