//! Boxes that encrypt what they send to each other.

use longhaul_sim::file::ScenarioFile;
use longhaul_sim::{Outcome, Simulation};

/// Bytes of a frame on the wire that counters omit: FCS, preamble and gap.
const AROUND: f64 = 24.0;
const SEAL: f64 = longhaul_seal::OVERHEAD as f64;

fn run(text: &str) -> Outcome {
    let loaded = ScenarioFile::parse("sealed.toml", text)
        .and_then(|file| file.load(&mut |name| Err(name.into())));
    let scenario = loaded.unwrap_or_else(|why| panic!("{why}")).scenario;
    let outcome = Simulation::new(scenario, |_, _| None).unwrap().run(1, |_| true);
    assert_eq!(outcome.violations, Vec::<String>::new());
    outcome
}

/// 10 Gbit/s over 400 km, through whole boxes with these keys.
fn path(loss: &str, keys: &str, flow: &str) -> Outcome {
    let outcome = run(&format!(
        "warmup = '100ms'\n[path]\ndistance = '400km'\nrate = '10G'\nloss = {loss}\n\
         accelerators = 'both'\n[path.accelerator]\ntransport = true\nmode = 'far'\n{keys}\n\
         [[flow]]\nsize = '256K'\nconnect = 'cm'\n{flow}\n"
    ));
    assert_eq!((&outcome.unfinished, &outcome.flows[0].failure), (&None, &None));
    outcome
}

/// Hosts behind boxes in tables, each with these keys.
fn tables(west: &str, east: &str) -> Outcome {
    run(&format!(
        "time_max = '200s'\n[[host]]\nname = 'a'\n[[host]]\nname = 'b'\n\
         [[accelerator]]\nname = 'west'\ntransport = true\n{west}\n\
         [[accelerator]]\nname = 'east'\ntransport = true\n{east}\n\
         [[link]]\nbetween = ['a', 'west.lan']\n\
         [[link]]\nbetween = ['west.wan', 'east.wan']\ndistance = '400km'\nrate = '100G'\n\
         [[link]]\nbetween = ['east.lan', 'b']\n\
         [[flow]]\nsize = '64K'\niterations = 200\nconnect = 'cm'\n"
    ))
}

fn counter(outcome: &Outcome, part: &str, name: &str) -> u64 {
    let part = outcome.accelerators.iter().find(|it| it.name == part);
    let of = part.into_iter().flat_map(|it| &it.counters);
    of.filter(|(counter, _)| counter == name).map(|(_, count)| *count).sum()
}

#[test]
fn a_sealed_path_delivers_the_same_at_a_rate_lower_by_the_seal() {
    for (loss, tolerance) in [("0.0", 1e-3), ("1e-3", 1e-2)] {
        let [plain, sealed] = ["", "key = 'k'"].map(|keys| path(loss, keys, "duration = '500ms'"));
        let wan = plain.wires.iter().find(|it| it.from == "near" && it.to == "far").unwrap();
        let frame = wan.entered_bytes as f64 / wan.entered_frames as f64 + AROUND;
        let ratio = sealed.flows[0].goodput_bps / plain.flows[0].goodput_bps;
        let expected = frame / (frame + SEAL);
        assert!((ratio - expected).abs() < tolerance, "{loss}: {ratio} instead of {expected}");
    }
}

#[test]
fn every_message_arrives_and_every_datagram_is_counted() {
    let of = |keys| path("1e-3", keys, "iterations = 1000");
    let (plain, sealed) = (of(""), of("key = 'k'"));
    assert_eq!(sealed.flows[0].messages, 1000);
    assert_eq!(sealed.flows[0].bytes, plain.flows[0].bytes);
    let of = |part: &str, name: &str| counter(&sealed, part, name);
    let (sent, opened) = (of("near-seal", "sealed"), of("far-seal", "opened"));
    let wan = sealed.wires.iter().find(|it| it.from == "near" && it.to == "far").unwrap();
    assert!(
        opened > 64_000 && opened < sent && sent - opened <= wan.lost_frames,
        "{sent} {opened}"
    );
    for part in ["near-seal", "far-seal"] {
        assert_eq!(of(part, "handshakes_done"), 1, "{part}");
        assert_eq!(of(part, "dropped_unauthenticated") + of(part, "dropped_replayed"), 0, "{part}");
    }
    assert!(plain.accelerators.iter().all(|it| !it.name.ends_with("-seal")));
}

#[test]
fn boxes_that_do_not_know_each_other_pass_no_rdma() {
    let known = tables("key = 'w'\npeer = 'east=e'", "key = 'e'\npeer = 'west=w'");
    assert_eq!((&known.flows[0].failure, known.flows[0].messages), (&None, 200));
    for (west, east, counted) in [
        // East does not know the key of west.
        ("key = 'w'\npeer = 'east=e'", "key = 'e'\npeer = 'west=x'", ["handshake_stranger", ""]),
        // West does not find the key of east.
        ("key = 'w'\npeer = 'east=x'", "key = 'e'\npeer = 'west=w'", ["", "no_peer"]),
        // The secrets differ.
        (
            "key = 'w'\npeer = 'east=e'\npsk = 'east=one'",
            "key = 'e'\npeer = 'west=w'\npsk = 'west=other'",
            ["", "handshake_forged"],
        ),
        // East has no key.
        ("key = 'w'\npeer = 'east=e'", "", ["", ""]),
    ] {
        let outcome = tables(west, east);
        let failure = outcome.flows[0].failure.as_deref().unwrap_or_default();
        assert!(failure.contains("0 of 1 QPs were connected"), "{west} {east}: {failure}");
        assert_eq!(outcome.flows[0].messages, 0);
        let host = outcome.hosts.iter().find(|host| host.name == "b").unwrap();
        // Where no box answers, the question for one reaches the host.
        let of_host = |name| host.counters.iter().find(|(counter, _)| counter == name);
        let [frames, questions] = ["rx_frames", "rx_not_roce"].map(of_host);
        assert_eq!(frames.map(|it| it.1), questions.map(|it| it.1), "{west} {east}");
        for (part, name) in ["east-seal", "west-seal"].into_iter().zip(counted) {
            let dropped = counter(&outcome, part, &format!("dropped_{name}"));
            assert!(name.is_empty() || dropped > 0, "{west} {east}: {part} {name}");
        }
        for name in ["sealed", "opened"] {
            assert_eq!(counter(&outcome, "west-seal", name), 0, "{west} {east}");
        }
        let refused = counter(&outcome, "west-seal", "dropped_clear_rdma_out");
        assert!(refused > 0, "{west} {east}: {:#?}", outcome.accelerators);
    }
}

#[test]
fn cleartext_passes_only_where_it_may() {
    let plain = tables("key = 'w'\npeer = 'east=e'\nkey_optional = true", "");
    assert_eq!((&plain.flows[0].failure, plain.flows[0].messages), (&None, 200));
    let clear = tables("key = 'w'\npeer = 'east=e'\nclear = '10.77.0.2/32'", "");
    assert_eq!((&clear.flows[0].failure, clear.flows[0].messages), (&None, 200));
    let other = tables("key = 'w'\npeer = 'east=e'\nclear = '10.99.0.0/16'", "");
    assert_eq!(other.flows[0].messages, 0);
}
