//! qperf, connected by RDMA-CM, as RoCE needs it.
//!
//! Its UC and UD tests never use RDMA-CM and address the peer by LID alone, which RoCE devices refuse (EINVAL): they
//! run on InfiniBand only, and here they must be refused the same way.

use longhaul_checks::{Turn, qperf};

fn positive(tests: &[&str], value: &str) {
    let _turn = Turn::take();
    for test in tests {
        let values = qperf::run(test, "-cm1").unwrap_or_else(|text| panic!("{test}: {text}"));
        assert!(values.get(value).is_some_and(|&value| value > 0.0), "{test}: {values:?}");
    }
}

#[test]
fn bandwidth() {
    positive(&["rc_bw", "rc_rdma_read_bw", "rc_rdma_write_bw"], "bw");
    positive(&["rc_bi_bw"], "bw");
}

#[test]
fn latency() {
    positive(&["rc_lat", "rc_rdma_read_lat", "rc_rdma_write_lat", "rc_rdma_write_poll_lat"], "latency");
}

#[test]
fn message_rates_of_atomics() {
    positive(&["rc_compare_swap_mr", "rc_fetch_add_mr"], "msg_rate");
}

#[test]
fn verification_of_atomics() {
    positive(&["ver_rc_compare_swap", "ver_rc_fetch_add"], "msg_rate");
}

#[test]
fn addresses_without_a_global_route_are_refused() {
    let _turn = Turn::take();
    for (test, message) in [
        ("uc_bw", "failed to modify QP to RTR: Invalid argument"),
        ("uc_lat", "failed to modify QP to RTR: Invalid argument"),
        ("ud_bw", "failed to create address handle: Invalid argument"),
        ("ud_lat", "failed to create address handle: Invalid argument"),
    ] {
        let text = qperf::run(test, "").expect_err("it cannot know the peer's address");
        assert!(text.contains(message), "{test}: {text}");
    }
}
