//! Every byte and every completion over 1000 km, with and without loss and acceleration; requests
//! that a responder must refuse; a network that fails. The program is `src/bin/integrity`.

use longhaul_checks::process;
use longhaul_checks::{Finished, Program, TestLab, free_tcp_port, from_environment};
use serde_json::Value;
use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(300);

/// Both ends of the program: the server on host b, the client on host a.
struct Ends {
    server: Program,
    client: Program,
}

fn start(lab: &TestLab, task: &str) -> Ends {
    let port = free_tcp_port();
    let run = |host: &str, arguments: String| {
        let mut command = lab.command(host, "");
        // The path of the checkout may contain spaces.
        command.arg(env!("CARGO_BIN_EXE_integrity")).args(arguments.split_whitespace());
        Program::start(&mut command)
    };
    let server = run("b", format!("--server --port {port} {task}"));
    let client = run("a", format!("--port {port} {task}"));
    Ends { server, client }
}

impl Ends {
    /// Output of both, the client's first.
    fn finish(self) -> Result<[Value; 2], String> {
        let (client, server) = (self.client.end_within(LIMIT), self.server.end_within(LIMIT));
        let text = |outcome: &Result<Finished, String>| match outcome {
            Ok(finished) => finished.to_string(),
            Err(hung) => hung.clone(),
        };
        let both = format!("=== client\n{}\n=== server\n{}", text(&client), text(&server));
        let result = |outcome: Result<Finished, String>| {
            let finished = outcome.ok().filter(|finished| finished.status.success())?;
            serde_json::from_str(&finished.stdout).ok()
        };
        match (result(client), result(server)) {
            (Some(client), Some(server)) => Ok([client, server]),
            _ => Err(both),
        }
    }
}

/// Counters by name.
fn counters(result: &Value) -> BTreeMap<&str, u64> {
    let named = result["counters"].as_object().expect("counters");
    named.iter().map(|(name, n)| (name.as_str(), n.as_u64().expect("a count"))).collect()
}

/// The seed, fixed unless the environment sets one.
fn seed() -> u64 {
    from_environment("LONGHAUL_SEED", 1)
}

mod bytes_and_completions {
    use super::*;

    /// Runs the plan of a seed in a lab; returns the results of client and server.
    fn transfer(test: &str, lab: &str, shape: &str) -> (TestLab, [Value; 2]) {
        let seed = seed();
        let lab = TestLab::up(&format!("--distance 1000km --seed {seed} {lab}"));
        let task = format!("transfer --seed {seed} {shape}");
        let results = start(&lab, &task).finish().unwrap_or_else(|both| {
            panic!(
                "{both}\n=== the lab\n{}\nto repeat: LONGHAUL_SEED={seed} cargo test -p \
                 longhaul-checks --test integrity bytes_and_completions::{test}",
                lab.status()
            )
        });
        for result in &results {
            assert_eq!(result["longest"], 8 << 20, "the longest message: {result}");
        }
        (lab, results)
    }

    #[test]
    fn are_right_without_loss() {
        let (lab, results) =
            transfer("are_right_without_loss", "", "--batches 40 --batch-bytes 12000000");
        assert_eq!(lab.losses(0) + lab.losses(1), 0);
        for result in &results {
            let counters = counters(result);
            assert_eq!(counters["cqe_error"], 0);
        }
    }

    #[test]
    fn are_right_without_loss_accelerated() {
        transfer(
            "are_right_without_loss_accelerated",
            "--accelerate",
            "--batches 40 --batch-bytes 12000000",
        );
    }

    #[test]
    fn are_right_with_some_loss() {
        let (lab, _) = transfer(
            "are_right_with_some_loss",
            "--loss 1e-4",
            "--batches 30 --batch-bytes 10000000",
        );
        assert!(lab.losses(0) + lab.losses(1) > 0, "nothing was lost: {}", lab.status());
    }

    #[test]
    fn are_right_with_some_loss_accelerated() {
        let (lab, _) = transfer(
            "are_right_with_some_loss_accelerated",
            "--loss 1e-4 --accelerate",
            "--batches 30 --batch-bytes 10000000",
        );
        assert!(lab.losses(0) + lab.losses(1) > 0, "nothing was lost: {}", lab.status());
    }

    #[test]
    fn are_right_with_much_loss_and_a_transport() {
        let (lab, _) = transfer(
            "are_right_with_much_loss_and_a_transport",
            "--loss 1e-2 --accelerate transport",
            "--batches 30 --batch-bytes 10000000",
        );
        assert!(lab.losses(0) + lab.losses(1) > 0, "nothing was lost: {}", lab.status());
        for site in lab.status()["accelerators"].as_array().expect("two sites") {
            let counters = &site["transport"]["counters"];
            assert_eq!(counters["sessions_opened"], 1, "{site}");
            assert!(counters["repeated"].as_u64().is_some_and(|n| n > 0), "{site}");
        }
    }

    #[test]
    fn are_right_with_much_loss() {
        let (lab, _) = transfer(
            "are_right_with_much_loss",
            "--loss 1e-2",
            "--batches 12 --batch-bytes 2000000",
        );
        assert!(lab.losses(0) > 0 && lab.losses(1) > 0, "nothing was lost: {}", lab.status());
    }

    #[test]
    fn are_right_with_much_loss_accelerated() {
        let (lab, _) = transfer(
            "are_right_with_much_loss_accelerated",
            "--loss 1e-2 --accelerate",
            "--batches 12 --batch-bytes 2000000",
        );
        assert!(lab.losses(0) > 0 && lab.losses(1) > 0, "nothing was lost: {}", lab.status());
    }

    #[test]
    fn are_right_with_one_accelerator_and_small_packets() {
        for site in ["a", "b"] {
            transfer(
                "are_right_with_one_accelerator_and_small_packets",
                &format!("--loss 1e-4 --accelerate {site}"),
                "--batches 4 --batch-bytes 3000000 --mtu 1024",
            );
        }
    }
}

mod soak {
    use super::*;

    const BATCH_BYTES: u64 = 10_000_000;
    /// Default of `--give-up`, and a second for the box to notice.
    const GIVE_UP: Duration = Duration::from_secs(21);

    /// Duration in seconds: short by default; `cargo xtask soak` runs half an hour.
    fn seconds() -> u64 {
        from_environment("LONGHAUL_SOAK_SECONDS", 25)
    }

    /// Loss, cuts of the fibre, and hosts that die and return: everything not aborted arrives
    /// unchanged, and the lab's memory does not grow.
    #[test]
    fn every_byte_is_accounted_for_and_memory_stays_flat() {
        let time = Duration::from_secs(seconds());
        let (began, first_seed) = (Instant::now(), seed());
        let lab = TestLab::up(&format!(
            "--distance 1000km --loss 1e-3 --loss-burst 4 --cut-for 150ms --cut-every 4s \
             --accelerate transport --seed {first_seed}"
        ));
        let pid = lab.status()["pid"].as_u64().expect("a process id") as u32;
        let (mut memory, mut whole, mut deaths, mut bytes) = (Vec::new(), 0_u64, vec![], 0_u64);
        for seed in first_seed.. {
            let transfer =
                format!("transfer --seed {seed} --batches 6 --batch-bytes {BATCH_BYTES}");
            let ends = start(&lab, &transfer);
            if seed % 4 == 0 {
                // A host dies during a transfer, one end after the other.
                sleep(Duration::from_millis(300 + 100 * (seed % 16)));
                let Ends { server, client } = ends;
                let (first, second) =
                    if seed % 8 == 0 { (client, server) } else { (server, client) };
                drop(first);
                drop(second);
                deaths.push(Instant::now());
            } else {
                let results = ends.finish().unwrap_or_else(|both| {
                    panic!("{both}\n=== the lab\n{}\nto repeat: LONGHAUL_SEED={seed}", lab.status())
                });
                whole += 1;
                bytes += results.iter().map(|end| counters(end)["tx_bytes"]).sum::<u64>();
            }
            memory.push(process::resident_kib(pid).expect("the daemon"));
            if began.elapsed() > time {
                break;
            }
        }
        let status = lab.status();
        let drops = &status["link"][0]["drops"];
        println!(
            "{whole} transfers whole, {bytes} bytes sent by their hosts, {} broken off; the \
             fibre's drops {drops}; memory in MiB, first, median and last: {:?}",
            deaths.len(),
            [memory[0], memory[memory.len() / 2], memory[memory.len() - 1]].map(|kib| kib >> 10)
        );
        assert!(
            whole > 0 && drops["loss"].as_u64() > Some(0) && drops["cut"].as_u64() > Some(0),
            "{status}"
        );
        // Tables and pools grow in the first third. Up to a batch is kept for each dead host until
        // the box gives up.
        let (early, late) = (memory[memory.len() / 3], memory[memory.len() - 1]);
        let kept = deaths.iter().filter(|death| death.elapsed() < GIVE_UP).count() as u64;
        let most = early + early / 2 + (32 << 10) + kept * (BATCH_BYTES >> 10);
        assert!(late <= most, "{early} to {late} KiB, more than {most}: {memory:?}");
    }
}

mod refused_requests {
    use super::*;

    #[test]
    fn fail_at_the_requester_and_at_the_responder() {
        let lab = TestLab::up("--distance 10km");
        let [client, server] =
            start(&lab, "refusal").finish().unwrap_or_else(|both| panic!("{both}"));
        assert_eq!(client["refused"], 10);
        assert_eq!(counters(&client)["req_remote_access_errors"], 10);
        assert_eq!(counters(&server)["resp_remote_access_errors"], 10);
    }

    #[test]
    fn fail_the_connection_when_they_were_acknowledged_early() {
        let lab = TestLab::up("--distance 10km --accelerate");
        let [_, server] = start(&lab, "refusal --early")
            .finish()
            .unwrap_or_else(|both| panic!("{both}\n=== the lab\n{}", lab.status()));
        assert_eq!(counters(&server)["resp_remote_access_errors"], 10);
    }
}

mod killed_lab {
    use super::*;

    #[test]
    fn fails_the_oldest_request_by_its_retry_budget_and_flushes_the_rest() {
        for accelerate in ["", "--accelerate"] {
            let lab = TestLab::up(&format!("--distance 100km {accelerate}"));
            let ends = start(&lab, "flood --size 65536 --count 10000000 --depth 64");
            let deadline = Instant::now() + LIMIT;
            while lab.status()["link"][0]["delivered_frames"].as_u64() < Some(5_000) {
                assert!(Instant::now() < deadline, "no data is in flight: {}", lab.status());
                sleep(Duration::from_millis(10));
            }
            let killed = Instant::now();
            lab.kill();
            let [client, _] = ends.finish().unwrap_or_else(|both| panic!("{both}"));
            let end = &client["end"];
            assert_eq!(end["status"], 12, "IBV_WC_RETRY_EXC_ERR: {end}");
            assert_eq!(end["flushed"], 63, "IBV_WC_WR_FLUSH_ERR for the rest: {end}");
            assert_eq!(counters(&client)["req_transport_retries_exceeded"], 1);
            // An exponent of 14 is 67 ms; it expires once and then for seven retries.
            assert!(
                killed.elapsed() > Duration::from_millis(8 * 67 - 100),
                "{:?}",
                killed.elapsed()
            );
        }
    }
}

mod plain_rc {
    use super::*;

    /// WRITEs of one packet each, so that PSNs number them.
    const COUNT: u64 = 3000;

    /// PSN of a request or of a sequence NAK, in the order of host a's port.
    enum Seen {
        Request(u64),
        Nak(u64),
    }

    /// The WRITEs from 10.77.0.1 in a capture, and their NAKs.
    fn seen(capture: &std::path::Path) -> Vec<Seen> {
        let mut command = longhaul_checks::RuntimeDir::new().longhaul("decode --json");
        let decoded = Program::start(command.arg(capture)).succeed(LIMIT);
        let mut seen = Vec::new();
        for line in decoded.stdout.lines() {
            let packet: Value = serde_json::from_str(line).expect("JSON");
            let psn = packet["psn"].as_u64().unwrap_or_default();
            if packet["name"].as_str().is_some_and(|name| name.contains("WRITE")) {
                seen.push(Seen::Request(psn));
            } else if packet["aeth"]["nak"] == "PSN sequence error" {
                seen.push(Seen::Nak(psn));
            }
        }
        seen
    }

    /// PSNs have 24 bits.
    fn next(psn: u64) -> u64 {
        (psn + 1) & 0x00ff_ffff
    }

    #[test]
    fn goes_back_to_the_first_missing_packet_and_sends_all_from_there_again() {
        let seed = seed();
        let capture =
            std::env::temp_dir().join(format!("longhaul-check-{}.pcap", std::process::id()));
        let lab = TestLab::up(&format!(
            "--distance 100km --loss 1e-2 --seed {seed} --pcap {} --pcap-frames 1000000",
            capture.display()
        ));
        let task = format!("flood --size 1024 --count {COUNT} --depth 64");
        let [client, server] = start(&lab, &task).finish().unwrap_or_else(|both| panic!("{both}"));
        let lost = lab.losses(0);
        let (client, server) = (counters(&client), counters(&server));
        lab.down();
        let seen = seen(&capture);
        std::fs::remove_file(&capture).expect("the capture");

        // One NAK per gap: at most one per lost packet, however many packets follow.
        let (gaps, discarded) = (server["tx_psn_seq_nak"], server["out_of_sequence"]);
        assert!(gaps > 0 && gaps <= lost, "{gaps} NAKs for {lost} lost packets");
        // No selective repeat: everything behind a gap is discarded and retransmitted together with
        // the lost packets.
        assert!(discarded > gaps, "{discarded} packets discarded behind {gaps} gaps");
        assert!(client["tx_retransmits"] >= discarded + gaps, "{client:?} {server:?}");

        // Each request follows the previous one, or the sequence restarts where a NAK says. A
        // timeout probes with the oldest packet and the last: two jumps.
        let (mut expected, mut naks, mut jumps) = (None, Vec::new(), 0);
        let mut unexplained = 0;
        for packet in &seen {
            match *packet {
                Seen::Nak(psn) => naks.push(psn),
                Seen::Request(psn) => {
                    if expected.is_some_and(|expected| expected != psn) {
                        jumps += 1;
                        unexplained += u64::from(!naks.contains(&psn));
                    }
                    expected = Some(next(psn));
                }
            }
        }
        let timeouts = client["local_ack_timeout_err"];
        assert!(
            jumps > 0 && naks.len() as u64 >= client["packet_seq_err"],
            "{jumps} of {}",
            naks.len()
        );
        assert!(
            unexplained <= 2 * timeouts,
            "{unexplained} jumps without a NAK, but {timeouts} timeouts"
        );
        let causes = client["packet_seq_err"] + 2 * timeouts;
        assert!(jumps <= causes, "{jumps} jumps for {causes} that NAKs and timeouts allow");
    }
}
