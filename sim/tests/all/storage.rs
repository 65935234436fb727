//! NVMe over Fabrics: round trips of commands, and the limits of a target.

use longhaul_sim::file::ScenarioFile;
use longhaul_sim::*;

/// The outcome of a flow of storage commands over `km` with these further keys of path and flow.
fn simulate(km: u32, path: &str, flow: &str) -> FlowOutcome {
    let text = format!(
        "warmup = \"20ms\"\n[path]\ndistance = \"{km}km\"\nrate = \"100G\"\n{path}\n[[flow]]\n\
         test = \"storage\"\n{flow}"
    );
    let file = ScenarioFile::parse("x.toml", &text);
    let loaded = file.and_then(|file| file.load(&mut |name| Err(format!("no file {name}"))));
    let scenario = loaded.unwrap_or_else(|error| panic!("{error}\n{text}")).scenario;
    let outcome = Simulation::new(scenario, |_, _| None).unwrap().run(1, |_| true);
    assert_eq!(outcome.violations, Vec::<String>::new(), "{text}");
    assert_eq!(outcome.unfinished, None, "{text}");
    let flow = outcome.flows.into_iter().next().unwrap();
    assert_eq!(flow.failure, None, "{text}");
    flow
}

fn latency_us(flow: &FlowOutcome) -> f64 {
    flow.latency.unwrap().mean_ns / 1e3
}

fn assert_near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.02, "{found} instead of {expected}");
}

#[test]
fn a_read_takes_one_round_trip_and_a_write_two_unless_its_data_are_in_the_capsule() {
    for (keys, round_trips) in [
        ("op = \"read\"\nsize = \"4K\"", 1.0),
        ("op = \"read\"\nsize = \"1M\"", 1.0),
        ("op = \"write\"\nsize = \"16K\"", 2.0),
        ("op = \"write\"\nsize = \"4K\"", 1.0),
        ("op = \"write\"\nsize = \"4K\"\nin_capsule = 0", 2.0),
        ("op = \"write\"\nsize = \"16K\"\nin_capsule = 16384", 1.0),
    ] {
        let flow = simulate(1000, "", &format!("{keys}\ntx_depth = 1\niterations = 20"));
        assert_eq!(flow.messages, 20);
        assert_near(latency_us(&flow), round_trips * 10_000.0);
    }
}

#[test]
fn outstanding_commands_share_the_round_trips() {
    let of = |op: &str| {
        let keys = format!("op = \"{op}\"\nsize = \"16K\"\nqps = 16\nduration = \"420ms\"");
        simulate(1000, "nic = \"ideal\"", &keys).goodput_bps
    };
    // 16 queues of 128 commands: 33.5 MB.
    let outstanding = 16.0 * 128.0 * 16384.0 * 8.0;
    assert_near(of("read"), outstanding / 0.010);
    assert_near(of("write"), outstanding / 0.020);
}

#[test]
fn a_nic_has_half_its_outstanding_wqes_for_commands_that_read() {
    let keys = "op = \"read\"\nsize = \"16K\"\nduration = \"220ms\"";
    // A WRITE and a SEND for each; 128 WQEs of the queue pair per round trip.
    let flow = simulate(1000, "nic = \"connectx6\"", keys);
    assert_near(flow.goodput_bps, 64.0 * 16384.0 * 8.0 / 0.010);
}

#[test]
fn writes_wait_for_the_reads_that_a_nic_may_have_outstanding() {
    let keys = "op = \"write\"\nsize = \"8K\"\nqps = 2\nduration = \"120ms\"";
    let flow = simulate(100, "nic = \"connectx6\"", keys);
    // 16 READs of each queue pair per round trip.
    assert_near(flow.goodput_bps, 2.0 * 16.0 * 8192.0 * 8.0 / 0.001);
}

#[test]
fn a_targets_processors_and_drives_limit_it() {
    let keys = "op = \"read\"\nsize = \"4K\"\nqps = 8\nduration = \"60ms\"";
    for (target, per_second) in [
        ("command_time = \"4us\"", 250_000.0),
        ("command_time = \"4us\"\ntarget_cores = 3", 750_000.0),
        ("drive_rate = \"8G\"", 8e9 / 8.0 / 4096.0),
    ] {
        let flow = simulate(0, "nic = \"ideal\"", &format!("{keys}\n{target}"));
        assert_near(flow.messages_per_second, per_second);
    }
    let slow = simulate(
        0,
        "",
        "op = \"read\"\nsize = \"4K\"\ntx_depth = 1\niterations = 20\ndrive_latency = \"80us\"",
    );
    assert!((80.0..85.0).contains(&latency_us(&slow)), "{}", latency_us(&slow));
}

#[test]
fn lost_packets_are_retransmitted_and_nothing_is_misplaced() {
    for op in ["read", "write"] {
        let keys = format!("op = \"{op}\"\nsize = \"64K\"\ntx_depth = 8\niterations = 300");
        let flow = simulate(10, "loss = 1e-3", &keys);
        assert_eq!((flow.messages, flow.bytes), (300, 300 << 16));
    }
}

#[test]
fn boxes_carry_commands_as_they_carry_other_messages() {
    let keys = "op = \"read\"\nsize = \"64K\"\ntx_depth = 32\niterations = 200";
    let plain = simulate(1000, "", keys);
    let through = simulate(1000, "accelerators = \"both\"\n", keys);
    assert_eq!(through.messages, plain.messages);
}

/// The outcome of writes over 1000 km between whole boxes with these further keys.
fn through_boxes(path: &str, boxes: &str, flow: &str) -> Outcome {
    let text = format!(
        "[path]\ndistance = \"1000km\"\nrate = \"10G\"\n{path}\naccelerators = \"both\"\n\
         [path.accelerator]\ntransport = true\n{boxes}\n[[flow]]\ntest = \"storage\"\n\
         connect = \"cm\"\n{flow}"
    );
    let file = ScenarioFile::parse("x.toml", &text);
    let loaded = file.and_then(|file| file.load(&mut |name| Err(format!("no file {name}"))));
    let scenario = loaded.unwrap_or_else(|error| panic!("{error}\n{text}")).scenario;
    let outcome = Simulation::new(scenario, |_, _| None).unwrap().run(1, |_| true);
    assert_eq!(outcome.violations, Vec::<String>::new(), "{text}");
    assert_eq!((&outcome.unfinished, &outcome.flows[0].failure), (&None, &None), "{text}");
    outcome
}

fn counter(outcome: &Outcome, part: &str, name: &str) -> u64 {
    let part = outcome.accelerators.iter().find(|it| it.name == part);
    let of = part.into_iter().flat_map(|it| &it.counters);
    of.filter(|(counter, _)| counter == name).map(|(_, count)| *count).sum()
}

#[test]
fn read_ahead_saves_a_write_a_round_trip() {
    let ahead = "read_ahead = [\"nvme\"]";
    for boxes in ["mode = \"early\"", "mode = \"off\"", "key = \"k\""] {
        for size in ["16K", "128K", "1M"] {
            let keys = format!("op = \"write\"\nsize = \"{size}\"\ntx_depth = 1\niterations = 20");
            let without = through_boxes("", boxes, &keys);
            let with = through_boxes("", &format!("{boxes}\n{ahead}"), &keys);
            let [without, with_ahead] = [&without, &with].map(|it| latency_us(&it.flows[0]));
            let saved = (without - with_ahead) / 10_000.0;
            assert!((saved - 1.0).abs() < 0.05, "{boxes} {size}: {without} and {with_ahead} us");
            // The first command may pass before the boxes have found each other.
            let answered = counter(&with, "far-read-ahead", "answered");
            assert!((19..=20).contains(&answered), "{boxes} {size}: {answered}");
            assert_eq!(counter(&with, "near-read-ahead", "fetched"), answered, "{boxes} {size}");
        }
    }
}

#[test]
fn reads_and_capsules_are_not_read_ahead_for() {
    for keys in ["op = \"read\"\nsize = \"64K\"", "op = \"write\"\nsize = \"4K\""] {
        let keys = format!("{keys}\ntx_depth = 1\niterations = 20");
        let outcome = through_boxes("", "read_ahead = [\"nvme\"]", &keys);
        assert_near(outcome.flows[0].latency.unwrap().median_ns / 1e3, 10_000.0);
        assert_eq!(counter(&outcome, "near-read-ahead", "announced"), 0);
    }
}

#[test]
fn flows_of_one_target_share_its_port() {
    let flow = "op = \"write\"\nsize = \"16K\"\nqps = 3\ntx_depth = 2\niterations = 10\ncount = 3";
    let outcome = through_boxes("loss = 1e-3", "read_ahead = [\"nvme\"]", flow);
    assert!(outcome.flows.iter().all(|flow| flow.messages == 30 && flow.failure.is_none()));
    assert_eq!(counter(&outcome, "near-read-ahead", "connections"), 9);
}

#[test]
fn read_ahead_without_connections_to_see_is_a_warning() {
    let warnings = |connect: &str| {
        let text = format!(
            "[path]\naccelerators = \"both\"\n[path.accelerator]\ntransport = true\n\
             read_ahead = [\"nvme\"]\n[[flow]]\ntest = \"storage\"\nop = \"write\"\n{connect}"
        );
        let file = ScenarioFile::parse("x.toml", &text).unwrap();
        file.load(&mut |name| Err(name.into())).unwrap().scenario.warnings()
    };
    assert!(warnings("")[0].starts_with("flow1: boxes read ahead only for connections"));
    assert_eq!(warnings("connect = \"cm\""), Vec::<String>::new());
}

#[test]
fn what_a_target_loses_when_its_host_disconnects_is_no_failure() {
    for loss in ["0.0", "1e-2"] {
        let keys = "op = \"write\"\nsize = \"64K\"\nqps = 4\ntx_depth = 8\nduration = \"80ms\"";
        let outcome = through_boxes(&format!("loss = {loss}"), "", keys);
        assert!(outcome.flows[0].messages > 0);
        let flow = simulate(100, &format!("loss = {loss}"), &format!("{keys}\nconnect = \"cm\""));
        assert!(flow.messages > 0);
    }
}

#[test]
fn a_read_waits_for_its_announcement_as_long_as_data_arrives() {
    // 67 MB on the way take 54 ms: a READ that did not wait would fetch its data again.
    let nic = "nic = { profile = \"connectx6\", outstanding_reads = 64 }";
    let keys = "op = \"write\"\nsize = \"128K\"\nqps = 8\ntx_depth = 64\nduration = \"300ms\"";
    let outcome = through_boxes(nic, "read_ahead = [\"nvme\"]", keys);
    let of = |name| counter(&outcome, "far-read-ahead", name);
    // The first commands pass before the boxes have found each other.
    let (passed, answered) = (of("reads_passed"), of("answered"));
    assert!(passed < 800 && answered > 1500, "{passed} passed, {answered} answered");
    assert!(outcome.flows[0].goodput_bps > 7e9, "{}", outcome.flows[0].goodput_bps);
}
