//! Cost of each mode of a pair of boxes, from a scenario file.

use longhaul_sim::Simulation;
use longhaul_sim::file::ScenarioFile;

/// Returns the milliseconds of 64 WRITEs of 64 KiB over an RTT of 10 ms, `tx_depth` at a time.
fn millis(mode: &str, tx_depth: u32, loss: f64) -> f64 {
    let text = format!(
        "[path]\ndistance = '1000km'\nrate = '100G'\nloss = {loss}\nnic = 'connectx6'\n\
         accelerators = 'both'\npaired = true\n\
         [path.accelerator]\nmode = '{mode}'\n\
         [[flow]]\nop = 'write'\nsize = '64K'\niterations = 64\ntx_depth = {tx_depth}\n\
         start = '1ms'\n"
    );
    let loaded = ScenarioFile::parse("modes.toml", &text)
        .and_then(|file| file.load(&mut |name| Err(name.into())));
    let scenario = loaded.unwrap_or_else(|why| panic!("{why}")).scenario;
    let outcome = Simulation::new(scenario, |_, _| None).unwrap().run(1, |_| true);
    assert_eq!((&outcome.violations, &outcome.unfinished), (&Vec::new(), &None), "{mode}");
    assert_eq!(outcome.flows[0].failure, None, "{mode}");
    outcome.flows[0].elapsed_ns as f64 / 1e6
}

#[test]
fn tail_and_far_cost_a_round_trip_for_each_queue_full() {
    for (mode, one_by_one, together) in [
        // The flow is learnt from its traffic: two messages take a round trip each, whatever the
        // mode.
        ("early", 20.0..40.0, 10.0..25.0),
        ("far", 640.0..660.0, 10.0..25.0),
        ("tail", 640.0..660.0, 10.0..25.0),
        ("off", 640.0..660.0, 10.0..25.0),
    ] {
        let (alone, deep) = (millis(mode, 1, 0.0), millis(mode, 64, 0.0));
        assert!(one_by_one.contains(&alone), "{mode}, one at a time: {alone} ms");
        assert!(together.contains(&deep), "{mode}, all at once: {deep} ms");
    }
}

#[test]
fn every_mode_survives_loss() {
    for mode in ["early", "far", "tail", "off"] {
        let took = millis(mode, 16, 1e-3);
        assert!(took > 10.0, "{mode}: {took} ms");
    }
}
