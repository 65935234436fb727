//! Our device against the kernel's rxe, each as the server and as the client of the other. Skipped, loudly, where no
//! guest can be had.

use longhaul_checks::guest::skip_loudly;
use longhaul_checks::interop::{End, Exchange, Family, RxePeer};
use longhaul_checks::perftest::complaint;
use longhaul_checks::{Finished, Turn};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const BOTH: [Family; 2] = [Family::V4, Family::V6];

/// perftest's lines without RDMA-CM: every transport and operation that rxe has, sizes up to 8 MiB, every path MTU.
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

/// By RDMA-CM; perftest knows IPv4 alone there.
const BY_CM: [&str; 2] = ["ib_write_bw -s 65536 -n 50 -R", "ib_send_bw -s 4096 -n 100 -R"];

const PINGPONG: [&str; 5] = [
    "ibv_rc_pingpong -n 50",
    "ibv_rc_pingpong -n 50 -s 20000 -m 1024 -e",
    "ibv_uc_pingpong -n 50",
    "ibv_ud_pingpong -n 50",
    "ibv_srq_pingpong -n 50 -q 4",
];

const RPING: [&str; 2] = ["-C 10 -S 100 -V", "-C 5 -S 60000 -V"];

/// Runs each exchange both ways, and tells all that went wrong.
fn run_all(
    peer: &RxePeer,
    exchanges: impl IntoIterator<Item = Exchange>,
    families: &[Family],
) -> Vec<String> {
    let mut wrong = Vec::new();
    for exchange in exchanges {
        for &family in families {
            for server in [End::Ours, End::Rxe] {
                let what = format!("{} ({family:?}, server {server:?})", exchange.client);
                match run_patiently(peer, &exchange, server, family) {
                    Err(text) => wrong.push(format!("{what}\n{text}")),
                    Ok((server, client)) => {
                        let said = [&server.stdout, &client.stdout].map(|text| complaint(text));
                        if let Some(said) = said.into_iter().flatten().next() {
                            wrong.push(format!("{what}: {said}"));
                        }
                    }
                }
            }
        }
    }
    wrong
}

/// perftest connects twice by RDMA-CM, and its server listens for the second connection only after the first: a client
/// that is quicker than an emulated server is refused, and tries again.
fn run_patiently(
    peer: &RxePeer,
    exchange: &Exchange,
    server: End,
    family: Family,
) -> Result<(Finished, Finished), String> {
    const TRIES: usize = 4;
    const TOO_EARLY: &str = "RDMA_CM_EVENT_REJECTED; error: 8";
    let mut outcome = peer.run(exchange, server, family, LIMIT);
    for _ in 1..TRIES {
        if !matches!(&outcome, Err(text) if text.contains(TOO_EARLY)) {
            break;
        }
        outcome = peer.run(exchange, server, family, LIMIT);
    }
    outcome
}

#[test]
fn every_program_runs_between_the_two() {
    let _turn = Turn::take();
    let peer = match RxePeer::boot("r") {
        Ok(peer) => peer,
        Err(reason) => return skip_loudly("our device against rxe", &reason),
    };
    // Addresses make no difference to the transports: half of the lines by IPv6 as well.
    let (both, by_ipv4) = PERFTEST.split_at(PERFTEST.len() / 2);
    let perftest = |lines: &[&str]| lines.iter().map(|line| Exchange::perftest(line)).collect::<Vec<_>>();
    let mut wrong = run_all(&peer, perftest(both), &BOTH);
    wrong.extend(run_all(&peer, perftest(by_ipv4), &[Family::V4]));
    wrong.extend(run_all(&peer, BY_CM.map(Exchange::perftest), &[Family::V4]));
    wrong.extend(run_all(&peer, PINGPONG.map(Exchange::pingpong), &BOTH));
    wrong.extend(run_all(&peer, RPING.map(Exchange::rping), &BOTH));
    // As above, and nearly always.
    for line in
        ["ib_send_bw -s 2048 -n 100 -R -c UD", "ib_read_lat -s 300 -n 50 -R", "ib_atomic_lat -n 50 -R"]
    {
        if let Err(text) = peer.run(&Exchange::perftest(line), End::Ours, Family::V4, LIMIT) {
            wrong.push(text);
        }
    }
    loses_and_reorders(&peer, &mut wrong);
    assert!(wrong.is_empty(), "{} went wrong:\n{}", wrong.len(), wrong.join("\n\n"));
}

/// 1 % loss and reordering on what the guest sends, by the kernel's netem; then both directions suffer, because requests
/// and their acknowledgements cross.
fn loses_and_reorders(peer: &RxePeer, wrong: &mut Vec<String>) {
    for netem in ["loss 1%", "delay 2ms reorder 25%", "duplicate 1%"] {
        peer.guest().succeed(&format!("tc qdisc replace dev eth0 root netem limit 10000 {netem}"), LIMIT);
        let lines = ["ib_write_bw -s 65536 -n 40", "ib_read_bw -s 65536 -n 40", "ib_send_bw -s 65536 -n 40"];
        let exchanges = lines.map(|line| Exchange::perftest(&format!("{line} -u 12")));
        let failed = run_all(peer, exchanges, &[Family::V4]);
        wrong.extend(failed.into_iter().map(|text| format!("netem {netem}: {text}")));
    }
    peer.guest().succeed("tc qdisc del dev eth0 root", LIMIT);
}
