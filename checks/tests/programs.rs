//! Unmodified programs from Debian's packages, in a lab.

use longhaul_checks::perftest::{BANDWIDTH, LEAST, MESSAGE_RATE, figures};
use longhaul_checks::{Program, Ready, RuntimeDir, TestLab, free_tcp_port, require};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);
/// Round trip over 1000 km.
const RTT_US: f64 = 10_000.0;

/// How perftest's two ends connect.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Tcp,
    RdmaCm,
}

fn perftest(lab: &TestLab, program: &str, options: &str, by: By) -> Vec<f64> {
    require(program, "perftest");
    let port = free_tcp_port();
    let base = format!("{program} -d longhaul0 -F -p {port} {options}");
    let (server, client, ready) = match by {
        // An ACK timeout of a second, as by RDMA-CM: the machine may be busy.
        By::Tcp => {
            let base = format!("{base} -u 18");
            (base.clone(), format!("{base} 127.0.0.1"), Ready::Tcp(port))
        }
        By::RdmaCm => (format!("{base} -R"), format!("{base} -R 10.77.0.2"), Ready::Attached),
    };
    let (_, client) = lab.pair(&server, &client, ready, LIMIT);
    figures(&client.stdout)
}

/// A trace of an unmodified program's calls, in the trace-event format.
#[test]
fn a_trace_has_every_post_and_where_the_time_went() {
    require("ib_write_bw", "perftest");
    let lab = TestLab::up("--distance 1km");
    let file = lab.runtime().path().join("calls.json");
    let base = "ib_write_bw -d longhaul0 -F -R -s 4096 -n 500";
    let server = lab.wait_for(lab.exec("b", base), Ready::Attached);
    let mut client = lab.command("a", "");
    let line: Vec<_> = client.get_args().map(ToOwned::to_owned).collect();
    client = lab.runtime().longhaul("");
    client.args(&line[..line.len() - 1]).arg("--trace").arg(&file).arg("--");
    client.args(base.split(' ')).arg("10.77.0.2");
    let client = Program::start(&mut client).finish(LIMIT);
    server.finish(LIMIT);
    assert!(client.status.success(), "{client}");
    assert!(client.stderr.contains("% poll_cq"), "{client}");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.trim_end().strip_suffix(',').unwrap();
    let events: serde_json::Value = serde_json::from_str(&format!("{text}]")).unwrap();
    let events = events.as_array().unwrap();
    let sum = |name: &str| -> u64 {
        events.iter().filter_map(|event| event["args"][name].as_u64()).sum()
    };
    let of_posts = events.iter().filter(|event| event["name"] == "post_send");
    let posted: u64 = of_posts.filter_map(|event| event["args"]["bytes"].as_u64()).sum();
    assert!(posted >= 500 * 4096, "{posted} bytes posted");
    assert!(sum("completions") >= 5, "{} completions", sum("completions"));
    assert!(events.iter().all(|event| event["ph"] != "X" || event["dur"].as_f64() >= Some(0.0)));
}

mod perftest_bandwidth {
    use super::*;

    fn write_read_and_send(by: By) {
        let lab = TestLab::up("--distance 1km");
        for program in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
            let row = perftest(&lab, program, "-s 65536 -n 1000 --report_gbits", by);
            assert_eq!(row[..2], [65536.0, 1000.0], "{program}: size and iterations");
            assert!(row[BANDWIDTH] > 0.0, "{program}: average bandwidth {row:?}");
        }
    }

    #[test]
    fn of_write_read_and_send_runs_to_its_end() {
        write_read_and_send(By::Tcp);
    }

    #[test]
    fn of_write_read_and_send_runs_to_its_end_when_connected_by_rdma_cm() {
        write_read_and_send(By::RdmaCm);
    }

    #[test]
    fn of_all_sizes_runs_to_its_end() {
        let lab = TestLab::up("--distance 1km --accelerate");
        let row = perftest(&lab, "ib_write_bw", "-a -n 100", By::Tcp);
        assert_eq!(row[0], f64::from(1 << 23), "the last size");
    }

    #[test]
    fn both_ways_at_once_through_two_accelerators() {
        let lab = TestLab::up("--distance 100km --accelerate");
        for by in [By::Tcp, By::RdmaCm] {
            let row = perftest(&lab, "ib_write_bw", "-b -s 4096 -n 5000", by);
            assert_eq!(row[1], 5000.0, "{by:?}");
        }
        let status = lab.status();
        for site in [0, 1] {
            let counters = &status["accelerators"][site]["counters"];
            assert!(!counters.is_null(), "no accelerator at site {site}: {status}");
        }
    }

    #[test]
    fn over_many_queue_pairs() {
        let lab = TestLab::up("--distance 10km --accelerate");
        let row = perftest(&lab, "ib_write_bw", "-q 8 -s 4096 -n 1000", By::Tcp);
        assert_eq!(row[1], 8000.0);
    }
}

mod perftest_latency {
    use super::*;

    /// Minimum latency of a hundred, in µs: due to protocol and distance, whatever else the machine
    /// does.
    fn least(lab: &TestLab, program: &str) -> f64 {
        // perftest prints "inf" if the machine was too busy to measure the rate of its clock.
        let mut tries = (0..3).map(|_| perftest(lab, program, "-n 100", By::Tcp)[LEAST]);
        tries.find(|us| us.is_finite()).expect("a clock rate within three tries")
    }

    #[test]
    fn of_a_read_is_one_round_trip_with_and_without_accelerators() {
        for accelerate in ["", "--accelerate"] {
            let lab = TestLab::up(&format!("--distance 1000km {accelerate}"));
            let least = least(&lab, "ib_read_lat");
            assert!((RTT_US..2.0 * RTT_US).contains(&least), "{least} µs {accelerate}");
        }
    }

    #[test]
    fn of_a_write_and_a_send_is_half_a_round_trip_with_and_without_accelerators() {
        for accelerate in ["", "--accelerate"] {
            let lab = TestLab::up(&format!("--distance 1000km {accelerate}"));
            for program in ["ib_write_lat", "ib_send_lat"] {
                let least = least(&lab, program);
                // perftest samples the clock's rate, with an error of some per cent under load.
                let possible = RTT_US / 2.0 * 0.95..RTT_US;
                assert!(possible.contains(&least), "{program}: {least} µs {accelerate}");
            }
        }
    }
}

mod distance {
    use super::*;

    /// perftest's queue depth.
    const DEPTH: u64 = 128;

    fn messages_per_rtt(lab: &TestLab, size: u32) -> f64 {
        let row =
            perftest(lab, "ib_write_bw", &format!("-s {size} -D 4 -f 1 --report_gbits"), By::Tcp);
        row[MESSAGE_RATE] * RTT_US
    }

    #[test]
    fn stalls_a_requester_at_its_queue_depth() {
        let lab = TestLab::up("--distance 1000km");
        for size in [512, 4096] {
            // perftest signals every hundredth message and refills its queue by a hundred: on an
            // idle machine the rate is 100 per round trip. The demo checks the lower bound.
            let messages = messages_per_rtt(&lab, size);
            assert!((2.0..=130.0).contains(&messages), "{size} B: {messages} messages per RTT");
        }
    }

    /// Maximum number of one-packet messages in flight, as seen at host a's port.
    fn most_under_way(capture: &Path) -> u64 {
        let runtime = RuntimeDir::new();
        let decoded = Program::start(runtime.longhaul("decode --json").arg(capture)).succeed(LIMIT);
        let (mut first, mut acked, mut most) = (None, 0, 0);
        for line in decoded.stdout.lines() {
            let packet: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let psn = packet["psn"].as_u64().unwrap_or_default();
            let name = packet["name"].as_str().unwrap_or_default();
            let is_write = name.contains("WRITE");
            if !is_write && !name.contains("ACK") {
                continue;
            }
            // Counted from the first message; PSNs have 24 bits.
            let number = psn.wrapping_sub(*first.get_or_insert(psn)) & 0x00ff_ffff;
            if is_write {
                most = most.max(number + 1 - acked);
            } else {
                acked = number + 1;
            }
        }
        most
    }

    #[test]
    fn leaves_a_requester_its_whole_queue_under_way() {
        let capture =
            std::env::temp_dir().join(format!("longhaul-check-depth-{}.pcap", std::process::id()));
        let lab = TestLab::up(&format!("--distance 1000km --pcap {}", capture.display()));
        // Whoever is interrupted while it fills the queue has later chances.
        perftest(&lab, "ib_write_bw", "-s 512 -n 5000", By::Tcp);
        lab.down();
        let most = most_under_way(&capture);
        std::fs::remove_file(&capture).expect("the capture");
        assert_eq!(most, DEPTH);
    }

    #[test]
    fn does_not_stall_it_with_accelerators() {
        let lab = TestLab::up("--distance 1000km --accelerate");
        // A busy machine may lower it for a while; no requester alone exceeds its queue depth.
        let beyond = (0..10).any(|_| messages_per_rtt(&lab, 512) > 1.5 * DEPTH as f64);
        assert!(
            beyond,
            "no more than 1.5 times the queue depth per RTT, ten times: {}",
            lab.status()
        );
        let site_a = &lab.status()["accelerators"][0];
        assert!(site_a["counters"]["pseudo_acks"].as_u64() > Some(0), "no pseudo-ACKs in {site_a}");
    }
}

mod other_programs {
    use super::*;

    #[test]
    fn ibv_devices_lists_the_device() {
        require("ibv_devices", "ibverbs-utils");
        let lab = TestLab::up("");
        let devices = lab.exec("a", "ibv_devices").succeed(LIMIT);
        assert!(devices.stdout.contains("longhaul0"), "{devices}");
    }

    #[test]
    fn ibv_devinfo_describes_it() {
        require("ibv_devinfo", "ibverbs-utils");
        let lab = TestLab::up("");
        let info = lab.exec("a", "ibv_devinfo -v").succeed(LIMIT);
        for text in
            ["longhaul0", "PORT_ACTIVE", "link_layer:\t\tEthernet", "::ffff:10.77.0.1, RoCE v2"]
        {
            assert!(info.stdout.contains(text), "{text} is missing in {info}");
        }
    }

    #[test]
    fn rping_validates_its_data() {
        require("rping", "rdmacm-utils");
        let lab = TestLab::up("--distance 100km --accelerate");
        lab.pair(
            "rping -s -a 10.77.0.2 -C 20 -S 4000 -V",
            "rping -c -a 10.77.0.2 -C 20 -S 4000 -V",
            Ready::Attached,
            LIMIT,
        );
    }
}
