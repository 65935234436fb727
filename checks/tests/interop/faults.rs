//! Faults between two kernels with rxe: a host without power, disconnected cables, accelerators
//! that end. Skipped, loudly, if no guest is available.

use longhaul_checks::guest::skip_loudly;
use longhaul_checks::interop::{Between, Boxes, Recorded, RxeHosts, segments};
use longhaul_checks::perftest::complaint;
use longhaul_checks::segments::{Proof, Rule, Segments, prove};
use longhaul_checks::{Finished, RuntimeDir, Turn, require};
use serde_json::Value;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(90);
/// rxe's requesters retry seven times; this ACK timeout of a second exceeds a cable's
/// disconnection.
const PATIENT: &str = "-u 18";

fn boot() -> Option<RxeHosts> {
    require("ib_write_bw", "perftest");
    RxeHosts::boot("flt", |config| config)
        .inspect_err(|reason| skip_loudly("faults between two kernels", reason))
        .ok()
}

/// Accelerators that give up soon, around a fibre of 100 km.
fn hasty() -> Between {
    Between { give_up_s: 3, ..Between::accelerated(100) }
}

fn accelerator(status: &Value) -> &Value {
    &status["pairs"][0]["accelerator"]
}

fn counter(status: &Value, name: &str) -> u64 {
    accelerator(status)["counters"][name]
        .as_u64()
        .unwrap_or_else(|| panic!("no {name}: {status:#}"))
}

/// Waits until the near accelerator has stored `packets` more.
fn wait_until_under_way(boxes: &Boxes, packets: u64) {
    let before = counter(&boxes.status("near"), "stored_packets");
    boxes.wait_for("near", "packets of a flow", LIMIT, |status| {
        counter(status, "stored_packets") > before + packets
    });
}

/// Runs a perftest program that must succeed at both ends.
fn works(hosts: &RxeHosts, line: &str) {
    let client = hosts.perftest(line, LIMIT).unwrap_or_else(|text| panic!("{line}\n{text}"));
    assert_eq!(complaint(&client.stdout), None, "{client}");
}

/// Checks that a program reported its failure.
fn failed(ended: &Finished) {
    assert!(!ended.status.success() && is_explained(ended), "{ended}");
}

fn is_explained(ended: &Finished) -> bool {
    complaint(&ended.stdout).or_else(|| complaint(&ended.stderr)).is_some()
}

fn proof(captures: &Path) -> Proof {
    let files = segments(captures);
    let segments =
        Segments::open(files.each_ref().map(|path| Some(path.as_path()))).expect("captures");
    prove(segments).unwrap_or_else(|error| panic!("{error}"))
}

/// Checks that nothing was changed, made up, duplicated or reordered; `lost` are the rules that
/// losses may violate.
fn nothing_wrong_but(proof: &Proof, lost: &[Rule]) {
    let wrong: Vec<_> =
        proof.violations.iter().filter(|found| !lost.contains(&found.rule)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}\n{:#?}", proof.flows);
    assert_eq!(proof.violations_total, proof.violations.len() as u64, "{:#?}", proof.violations[0]);
}

/// Disconnects the cable of `guest` for `time` while `line` runs, which must succeed nevertheless.
fn survives_a_pulled_cable(
    hosts: &RxeHosts,
    boxes: &Boxes,
    guest: usize,
    line: &str,
    time: Duration,
) {
    let [client, server] = hosts.begin(line, LIMIT);
    wait_until_under_way(boxes, 500);
    hosts.cable(guest).plug(false);
    sleep(time);
    hosts.cable(guest).plug(true);
    let (client, server) = (client.finish(), server.finish());
    for ended in [client, server] {
        assert!(
            ended.status.success() && complaint(&ended.stdout).is_none(),
            "guest {guest}'s cable: {ended}"
        );
    }
}

#[test]
#[ignore = "minutes: cargo xtask interop"]
fn what_befalls_the_hosts_ends_nothing_that_need_not() {
    let _turn = Turn::take();
    let Some(mut hosts) = boot() else { return };
    pulled_cables(&hosts);
    tcp_beside_roce(&hosts);
    let boxes = hosts.join(hasty(), None);
    host_without_power(&mut hosts, &boxes, 1);
    boxes.stop();
}

/// For a second: transfers complete, each byte once and in order.
fn pulled_cables(hosts: &RxeHosts) {
    let captures = RuntimeDir::new();
    let boxes = hosts.join(hasty(), Some(captures.path()));
    let second = Duration::from_secs(1);
    // The responder's cable: the accelerator at the other end bridges it, whatever the requester's
    // timeout.
    survives_a_pulled_cable(hosts, &boxes, 1, "ib_send_bw -s 65536 -n 300", second);
    survives_a_pulled_cable(
        hosts,
        &boxes,
        0,
        &format!("ib_send_bw -s 65536 -n 300 {PATIENT}"),
        second,
    );
    boxes.stop();
    let found = proof(captures.path());
    nothing_wrong_but(&found, &[Rule::OtherLost]);
    let whole =
        found.flows.iter().filter(|flow| flow.sent == 300 * 16 && flow.confirmed == flow.sent);
    assert_eq!(whole.count(), 2, "{:#?}", found.flows);
}

/// A TCP connection through the accelerators beside RoCE delivers the bytes sent, and each of its
/// frames leaves each box unchanged.
fn tcp_beside_roce(hosts: &RxeHosts) {
    let captures = RuntimeDir::new();
    let between = Between { mbits: 200, ..Between::accelerated(100) };
    let boxes = hosts.join(between, Some(captures.path()));
    let [client, server] = hosts.begin("ib_send_bw -s 65536 -n 400", LIMIT);
    wait_until_under_way(&boxes, 100);
    let [first, second] = hosts.guests();
    let (port, address) = (5001, hosts.address(1));
    // busybox's nc closes its side at the end of its input, and its peer takes that for the end of
    // everything.
    let take = format!("mkfifo /tmp/open; exec 9<>/tmp/open; nc -l -p {port} <&9 | sha256sum");
    let taker = second.spawn(&take, LIMIT);
    let giver = first.succeed(
        &format!(
            "head -c 4000000 /dev/urandom >/tmp/sent
            until nc {address} {port} </tmp/sent; do sleep 0.1; done
            sha256sum </tmp/sent"
        ),
        LIMIT,
    );
    assert_eq!(taker.succeed().stdout, giver.stdout, "other bytes came than were sent");
    for job in [client, server] {
        let ended = job.succeed();
        assert_eq!(complaint(&ended.stdout), None, "{ended}");
    }
    boxes.stop();
    let found = proof(captures.path());
    assert!(found.holds(), "{found:#?}");
    let carried: u64 = found.boxes.iter().flat_map(|passage| passage.carried).sum();
    assert!(carried > 2 * 1000, "{:#?}", found.boxes);
}

/// A guest dies during a transfer: the boxes release the flow, and a new guest can be reached. The
/// other guest's program fails, or retries as without boxes: with a retry count of 7 rxe never
/// gives up.
fn host_without_power(hosts: &mut RxeHosts, boxes: &Boxes, guest: usize) {
    // Both send, so that the survivor notices.
    let [client, server] = hosts.begin("ib_write_bw -b -s 65536 -D 60", LIMIT);
    wait_until_under_way(boxes, 500);
    hosts.guests()[guest].kill();
    let began = Instant::now();
    let (left, gone) = if guest == 1 { (client, server) } else { (server, client) };
    drop(gone);
    for name in ["near", "far"] {
        let status = boxes.wait_for(name, "a store that is let go", LIMIT, |status| {
            accelerator(status)["stored_bytes"] == 0
        });
        println!(
            "{name}: nothing stored {:?} after the power went; {} flows failed",
            began.elapsed(),
            counter(&status, "flows_failed")
        );
    }
    if left.is_running() {
        println!(
            "guest {guest} without power: the other end still asks after {:?}",
            began.elapsed()
        );
    } else {
        let (stdout, stderr) = left.output();
        let says = complaint(&stdout).or_else(|| complaint(&stderr));
        assert!(says.is_some(), "{stdout}\n{stderr}");
        println!("guest {guest} without power: the other end said '{says:?}'");
    }
    drop(left);
    hosts.boot_again(guest);
    hosts.wait_until_joined();
    for line in ["ib_write_bw -s 65536 -n 100", "ib_send_bw -s 4096 -n 200 -R"] {
        works(hosts, line);
    }
}

#[test]
#[ignore = "takes a minute"]
fn a_requesters_host_without_power_ends_nothing_else() {
    let _turn = Turn::take();
    let Some(mut hosts) = boot() else { return };
    let boxes = hosts.join(hasty(), None);
    host_without_power(&mut hosts, &boxes, 0);
    boxes.stop();
}

#[test]
#[ignore = "takes minutes"]
fn a_cable_pulled_for_a_minute_ends_no_flow_unsaid_and_no_others() {
    let _turn = Turn::take();
    let Some(hosts) = boot() else { return };
    for guest in [1, 0] {
        let captures = RuntimeDir::new();
        let boxes = hosts.join(Between::accelerated(100), Some(captures.path()));
        let limit = LIMIT * 2;
        let [client, server] = hosts.begin("ib_write_bw -b -s 65536 -D 100", limit);
        wait_until_under_way(&boxes, 500);
        hosts.cable(guest).plug(false);
        let began = Instant::now();
        for job in [&client, &server] {
            while job.is_running() && began.elapsed() < Duration::from_secs(60) {
                sleep(Duration::from_millis(200));
            }
            println!(
                "guest {guest}'s cable: an end has ended, {}, {:?}",
                !job.is_running(),
                began.elapsed()
            );
        }
        sleep(Duration::from_secs(60).saturating_sub(began.elapsed()));
        hosts.cable(guest).plug(true);
        // With a retry count of 7 rxe never gives up, so that a transfer may continue and succeed.
        for job in [client, server] {
            let ended = job.finish();
            println!("{ended}");
            assert_ne!(ended.status.success(), is_explained(&ended), "{ended}");
        }
        hosts.wait_until_joined();
        for line in ["ib_write_bw -s 65536 -n 100", "ib_send_bw -s 4096 -n 200 -R"] {
            works(&hosts, line);
        }
        let status = boxes.status("near");
        assert_eq!(accelerator(&status)["stored_bytes"], 0, "{status:#}");
        boxes.stop();
        // A fatal NAK reported acknowledged and undeliverable packets to the requester, cable
        // permitting.
        nothing_wrong_but(&proof(captures.path()), &[Rule::OtherLost, Rule::AckedNeverArrived]);
    }
}

#[test]
#[ignore = "takes a minute"]
fn an_accelerator_that_is_restarted_ends_its_flows_with_errors_and_new_ones_work() {
    let _turn = Turn::take();
    let Some(hosts) = boot() else { return };
    let line = "ib_write_bw -R -b -s 65536 -D 60";
    // perftest's default of seven retries means forever to rxe, so that only the new box can end
    // the client's flow. The server's flow is not the new box's: its requests to a missing QP end
    // by its own retries, or never, as without boxes.
    let lines = [(line.to_owned(), false), (format!("{line} --retry_count=6"), true)];
    let cases = lines.iter().flat_map(|line| [libc::SIGTERM, libc::SIGKILL].map(|how| (line, how)));
    for ((line, server_gives_up), signal) in cases {
        let captures = RuntimeDir::new();
        // Over a fibre slower than the guests, so that much is acknowledged and undelivered.
        let between = Between { mbits: 20, ..hasty() };
        let mut boxes = hosts.join_recorded(between, Recorded::Apart(captures.path()));
        let [client, server] = hosts.begin(line, LIMIT);
        boxes.wait_for("near", "packets in the store", LIMIT, |status| {
            accelerator(status)["stored_bytes"].as_u64() > Some(2 << 20)
        });
        let ended = boxes.restart("near", signal);
        assert_eq!(ended.status.success(), signal == libc::SIGTERM, "{ended}");
        failed(&client.finish());
        if *server_gives_up {
            failed(&server.finish());
        } else {
            drop(server);
        }
        for line in ["ib_write_bw -s 65536 -n 40", "ib_send_bw -s 4096 -n 200 -R"] {
            works(&hosts, line);
        }
        let status = boxes.status("near");
        assert!(counter(&status, "pseudo_acks") > 0, "{status:#}");
        boxes.stop();
        let found = proof(captures.path());
        // Boxes other than the accelerators record, so a recorded MigReq may be unknown to an
        // accelerator. The new box's fatal NAK has the responder's MSN, because the old box's count
        // is unknown.
        let lost = [
            Rule::AckedNeverArrived,
            Rule::AckWentBack,
            Rule::MigReqDiffers,
            Rule::MsnWrong,
            Rule::OtherLost,
        ];
        nothing_wrong_but(&found, &lost);
        let lost: u64 =
            found.flows.iter().map(|flow| flow.acknowledged.saturating_sub(flow.arrived)).sum();
        assert!(lost > 100, "nothing was lost: {:#?}", found.flows);
    }
}
