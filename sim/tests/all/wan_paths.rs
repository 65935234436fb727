//! Whole boxes over paths that are cut, reorder, lose in bursts and are shared, at low rates: the
//! results of docs/simulator.md and docs/measurements.md at 100 Gbit/s hold qualitatively.

use longhaul_sim::file::ScenarioFile;
use longhaul_sim::{FlowOutcome, Outcome, Simulation};

fn run(text: &str) -> Outcome {
    let loaded = ScenarioFile::parse("paths.toml", text)
        .and_then(|file| file.load(&mut |name| Err(name.into())));
    let scenario = loaded.unwrap_or_else(|why| panic!("{why}")).scenario;
    let outcome = Simulation::new(scenario, |_, _| None).unwrap().run(1, |_| true);
    assert_eq!((&outcome.violations, &outcome.unfinished), (&Vec::new(), &None));
    assert!(outcome.flows.iter().all(|flow| flow.failure.is_none()), "{:?}", outcome.flows);
    outcome
}

/// One path of 5 Gbit/s, or 10 for one alone, over 1000 km.
fn path(keys: &str, boxes: &str, flow: &str) -> Outcome {
    seeded(1, keys, boxes, flow)
}

fn seeded(seed: u64, keys: &str, boxes: &str, flow: &str) -> Outcome {
    run(&format!(
        "seed = {seed}\n[path]\ndistance = '1000km'\nrate = '5G'\nnic = 'connectx6'\n\
         accelerators = 'both'\n{keys}\n\
         [path.accelerator]\ntransport = true\n{boxes}\n[[flow]]\nconnect = 'cm'\n{flow}\n"
    ))
}

/// Messages of 256 KiB that have completed `ms` after a flow began over two paths of 2 Gbit/s, of
/// which one is cut 200 ms after everything began. Completions mean that the far box has the data.
fn completed(ms: u64, cut: &str) -> u64 {
    let link = |n: &str, cut: &str| {
        format!(
            "[[link]]\nname = 'wan{n}'\nbetween = ['near.wan{n}', 'far.wan{n}']\n\
             distance = '1000km'\nrate = '2G'\n{cut}\n"
        )
    };
    let outcome = run(&format!(
        "[[host]]\nname = 'a'\nnic = 'connectx6'\n[[host]]\nname = 'b'\nnic = 'connectx6'\n\
         [[accelerator]]\nname = 'near'\ntransport = true\nmode = 'far'\n\
         [[accelerator]]\nname = 'far'\ntransport = true\nmode = 'far'\n\
         [[link]]\nbetween = ['a', 'near.lan']\n[[link]]\nbetween = ['far.lan', 'b']\n{}{}\
         [[flow]]\nfrom = 'a'\nto = 'b'\nsize = '256K'\ntx_depth = 64\nduration = '{ms}ms'\n\
         connect = 'cm'\n",
        link("", ""),
        link("2", cut),
    ));
    outcome.flows[0].messages
}

#[test]
fn fifty_milliseconds_after_a_path_is_cut_the_other_one_is_full() {
    let cut = "cut_at = '200ms'";
    // The flow begins 10 to 20 ms after everything.
    let gbps = |from: u64, to: u64, cut: &str| {
        (completed(to, cut) - completed(from, cut)) as f64 * 8.0 * 262_144.0
            / (to - from) as f64
            / 1e6
    };
    let both = gbps(100, 180, cut);
    let survivor = gbps(240, 320, cut);
    assert!(both > 3.6, "{both}");
    assert!(survivor > 1.8, "{survivor} of 2 Gbit/s");
    // The path recovers when the cut ends.
    let again = gbps(500, 580, "cut_at = '200ms'\ncut_for = '100ms'");
    assert!(again > 3.6, "{again}");
}

#[test]
fn reordering_costs_no_goodput() {
    let goodput = |keys: &str| {
        let flow = "name = 'first'\nduration = '150ms'\n[[flow]]\nname = 'measured'\n\
                    start = '200ms'\nsize = '256K'\n\
                    duration = '600ms'\nconnect = 'cm'";
        path(keys, "mode = 'far'", flow).flows[1].goodput_bps
    };
    let without = goodput("");
    for part in ["0.01", "0.5"] {
        let with = goodput(&format!("reorder = {part}\nreorder_delay = '1ms'"));
        assert!(
            with > 0.98 * without,
            "{with} of {without} with {part} of the frames late by 1 ms"
        );
    }
}

fn jain(flows: &[FlowOutcome]) -> f64 {
    let sum = |of: fn(f64) -> f64| flows.iter().map(|flow| of(flow.goodput_bps)).sum::<f64>();
    sum(|x| x).powi(2) / (flows.len() as f64 * sum(|x| x * x))
}

#[test]
fn flows_share_a_path_evenly() {
    for (mode, loss) in [("early", "0.0"), ("far", "1e-3")] {
        let outcome = path(
            &format!("loss = {loss}"),
            &format!("mode = '{mode}'"),
            "count = 64\nsize = '64K'\nduration = '200ms'",
        );
        let total: f64 = outcome.flows.iter().map(|flow| flow.goodput_bps).sum();
        assert_eq!(outcome.flows.len(), 64);
        assert!(jain(&outcome.flows) > 0.98, "{mode}: {}", jain(&outcome.flows));
        assert!(total > 4.2e9, "{mode}: {total}");
    }
}

#[test]
fn losses_that_come_in_bursts_are_repaired_too() {
    let goodput = |keys: &str| {
        path(keys, "mode = 'far'", "size = '256K'\nduration = '400ms'").flows[0].goodput_bps
    };
    let without = goodput("");
    for (loss, burst, least) in [("1e-3", 8, 0.95), ("1e-2", 8, 0.9), ("1e-2", 64, 0.9)] {
        let with = goodput(&format!("loss = {loss}\nloss_burst = {burst}"));
        assert!(with > least * without, "{with} of {without} at {loss} in bursts of {burst}");
    }
}

#[test]
fn nearly_all_writes_complete_without_a_repetition_though_frames_are_lost() {
    // Percentile 99.9 in round trips. The first flow shows the boxes what the path loses; of 32
    // WRITEs at once the last wait a third of a round trip for the others.
    let p999 = |seed: u64, mode: &str, parity: &str, loss: &str| {
        let flow = "name = 'first'\nduration = '1500ms'\ntx_depth = 32\n[[flow]]\n\
                    name = 'measured'\nstart = '1600ms'\n\
                    tx_depth = 32\nduration = '1s'\nconnect = 'cm'";
        let boxes = format!("mode = '{mode}'\nparity = '{parity}'");
        let outcome = seeded(seed, &format!("loss = {loss}"), &boxes, flow);
        outcome.flows[1].latency.as_ref().unwrap().p999_ns / 10e6
    };
    for mode in ["far", "tail"] {
        let clean = p999(1, mode, "adaptive", "0.0");
        // About one second in eight has a loss that parity cannot repair.
        let mut with: Vec<f64> = (1..=5).map(|seed| p999(seed, mode, "adaptive", "1e-3")).collect();
        with.sort_by(f64::total_cmp);
        assert!(with[2] < clean + 0.1, "{mode}: {with:?} round trips, {clean} without loss");
        // A WRITE with a retransmission takes at least two round trips.
        let without = p999(1, mode, "off", "1e-3");
        assert!(
            without > 2.0 && without > clean + 0.6,
            "{mode}: {without} round trips without parity"
        );
    }
}

/// Returns the time for two hosts to write 400 MB each to a third with a port of 1 Gbit/s: next to
/// them, or behind boxes and a path.
fn incast_ms(path: Option<&str>) -> f64 {
    let hosts: String = ["a1", "a2", "b"]
        .map(|name| {
            format!(
                "[[host]]\nname = '{name}'\nnic = {{ profile = 'connectx6', timeout_code = 18 }}\n"
            )
        })
        .concat();
    let link = |from: &str, to: &str, keys: &str| {
        format!("[[link]]\nbetween = ['{from}', '{to}']\nrate = '1G'\n{keys}\n")
    };
    let flow = |name: &str, from: &str, keys: &str| {
        format!("[[flow]]\nname = '{name}'\nfrom = '{from}'\nto = 'b'\nconnect = 'cm'\n{keys}\n")
    };
    let measured = "start = '300ms'\nsize = '1M'\ntx_depth = 16\niterations = 400";
    let to_b = match path {
        None => link("tor", "b", ""),
        Some(keys) => {
            ["near", "far"]
                .map(|name| {
                    format!("[[accelerator]]\nname = '{name}'\ntransport = true\nmode = 'far'\n")
                })
                .concat()
                + &link("tor", "near.lan", "")
                + &link("near.wan", "far.wan", &format!("delay = '25ms'\n{keys}"))
                + &link("far.lan", "b", "")
        }
    };
    let outcome = run(&[
        hosts,
        "[[switch]]\nname = 'tor'\npfc = 'on'\n".to_owned(),
        to_b,
        link("a1", "tor", ""),
        link("a2", "tor", ""),
        // The boxes have a session before the measured flows begin.
        flow("first", "a1", "size = '64K'\niterations = 10"),
        flow("one", "a1", measured),
        flow("two", "a2", measured),
    ]
    .concat());
    outcome.flows[1..].iter().map(|flow| flow.elapsed_ns as f64 / 1e6).fold(0.0, f64::max)
}

#[test]
fn two_hosts_that_write_to_one_over_a_path_take_as_long_as_side_by_side() {
    let side_by_side = incast_ms(None);
    for loss in ["", "loss = 1e-4"] {
        let over = incast_ms(Some(loss));
        // Includes the round trip and the tunnel's headers: 0.7 %.
        assert!(
            over < 1.02 * side_by_side,
            "{over} ms over a path with {loss:?}, {side_by_side} side by side"
        );
    }
}

/// Returns the goodput of a flow to a responder behind a marking switch with half the path's rate,
/// and the switch's drops.
fn behind_a_slower_port(dcqcn: &str) -> (f64, u64) {
    let outcome = run(&format!(
        "time_max = '2s'\n[[host]]\nname = 'a'\nnic = 'connectx6'\ndcqcn = '{dcqcn}'\n[[host]]\n\
         name = 'b'\nnic = 'connectx6'\ndcqcn = '{dcqcn}'\n\
         [[switch]]\nname = 'leaf'\nqueue = '2M'\necn = '100K:400K:0.2'\n\
         [[accelerator]]\nname = 'near'\ntransport = true\n[[accelerator]]\nname = 'far'\n\
         transport = true\n\
         [[link]]\nbetween = ['a', 'near.lan']\nrate = '10G'\n\
         [[link]]\nbetween = ['near.wan', 'far.wan']\nrate = '10G'\ndelay = '5ms'\n\
         [[link]]\nbetween = ['far.lan', 'leaf']\nrate = '10G'\n\
         [[link]]\nbetween = ['leaf', 'b']\nrate = '5G'\n\
         [[flow]]\nfrom = 'a'\nto = 'b'\nsize = '64K'\ntx_depth = 128\nduration = '400ms'\n\
         connect = 'cm'\n"
    ));
    let dropped = outcome.switches[0]
        .ports
        .iter()
        .flat_map(|port| &port.drops)
        .map(|(_, frames)| frames)
        .sum();
    (outcome.flows[0].goodput_bps, dropped)
}

#[test]
fn a_box_slows_down_where_the_responders_network_asks_for_it() {
    let (goodput, dropped) = behind_a_slower_port("on");
    assert!(goodput > 4.5e9 && dropped == 0, "{goodput} bit/s, {dropped} frames dropped");
    // If the switch only drops, a window keeps the box from retransmitting everything repeatedly.
    let (goodput, dropped) = behind_a_slower_port("off");
    assert!(
        goodput > 4.5e9 && (1..4000).contains(&dropped),
        "{goodput} bit/s, {dropped} frames dropped"
    );
}
