//! qperf: its RC tests, connected by RDMA-CM as RoCE requires. Its UC and UD tests never use
//! RDMA-CM and address the peer only by LID.

use longhaul_checks::{Turn, qperf};

fn positive(tests: &[&str], value: &str) {
    positive_with("-cm1", tests, value);
}

fn positive_with(options: &str, tests: &[&str], value: &str) {
    let _turn = Turn::take();
    for test in tests {
        let values = qperf::run(test, options).unwrap_or_else(|text| panic!("{test}: {text}"));
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
    positive(
        &["rc_lat", "rc_rdma_read_lat", "rc_rdma_write_lat", "rc_rdma_write_poll_lat"],
        "latency",
    );
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
fn unreliable_connections_and_datagrams() {
    positive_with("", &["uc_bw", "uc_rdma_write_bw", "ud_bw"], "recv_bw");
    positive_with(
        "",
        &["uc_lat", "uc_rdma_write_lat", "uc_rdma_write_poll_lat", "ud_lat"],
        "latency",
    );
}
