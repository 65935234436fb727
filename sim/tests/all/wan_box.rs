//! Whole boxes with the WAN transport: unmodified requesters over lossy paths.

use longhaul_sim::file::ScenarioFile;
use longhaul_sim::{Outcome, Simulation};

/// Three hundred milliseconds of 10 Gbit/s over 400 km, from a scenario file with these keys.
fn run(path: &str, boxes: &str, flow: &str, threads: usize) -> Outcome {
    let text = format!(
        "[path]\ndistance = '400km'\nrate = '10G'\nnic = 'connectx6'\n{path}\n\
         [path.accelerator]\n{boxes}\n\
         [[flow]]\nduration = '300ms'\nconnect = 'cm'\n{flow}\n"
    );
    outcome(&text, threads)
}

fn outcome(text: &str, threads: usize) -> Outcome {
    let loaded = ScenarioFile::parse("boxes.toml", text)
        .and_then(|file| file.load(&mut |name| Err(name.into())));
    let scenario = loaded.unwrap_or_else(|why| panic!("{why}")).scenario;
    Simulation::new(scenario, |_, _| None).unwrap().run(threads, |_| true)
}

fn goodput(outcome: &Outcome) -> f64 {
    assert_eq!((&outcome.violations, &outcome.unfinished), (&Vec::new(), &None));
    assert_eq!(outcome.flows[0].failure, None);
    outcome.flows[0].goodput_bps
}

const WHOLE: &str = "transport = true";

#[test]
fn loss_that_stops_a_pair_costs_a_whole_box_its_own_share() {
    // In mode far a completion means that the far box has the data, so messages in flight do not
    // count. The requester needs a queue for the round trip and a retransmission.
    let of = |loss: &str, boxes: &str, extra: &str| {
        goodput(&run(
            &format!("accelerators = 'both'\nloss = {loss}\n{extra}"),
            boxes,
            "size = '256K'",
            1,
        ))
    };
    let far = "mode = 'far'";
    let (clean, lossy) = ("0.0", "1e-2");
    let without_loss = of(clean, &format!("{WHOLE}\n{far}"), "");
    let with_loss = of(lossy, &format!("{WHOLE}\n{far}"), "");
    let pair = of(lossy, far, "paired = true");
    assert!(without_loss > 9.4e9, "{without_loss}");
    assert!(with_loss > 0.93 * without_loss, "{with_loss} of {without_loss}");
    assert!(pair < 0.3 * without_loss, "{pair} without a transport");
}

#[test]
fn every_mode_and_operation_goes_through() {
    let path = "accelerators = 'both'\nloss = 1e-3\nreorder = 1e-2\nduplicate = 1e-3";
    // 16 READs of 64 KiB in each round trip are 2.1 Gbit/s at most.
    for (mode, op, least) in [
        ("early", "write", 8e9),
        ("far", "send", 6e9),
        ("tail", "write", 6e9),
        ("off", "send", 6e9),
        ("early", "read", 1.5e9),
    ] {
        let outcome = run(path, &format!("{WHOLE}\nmode = '{mode}'"), &format!("op = '{op}'"), 1);
        let reached = goodput(&outcome);
        assert!(reached > least, "{mode} {op}: {reached}");
    }
}

#[test]
fn a_rate_that_adapts_finds_the_path_s() {
    let of = |loss: &str| {
        let path = format!("accelerators = 'both'\nloss = {loss}");
        goodput(&run(
            &path,
            &format!("{WHOLE}\nmode = 'far'\nwan_rate = 'adaptive'"),
            "size = '256K'",
            1,
        ))
    };
    let (clean, lossy) = (of("0.0"), of("1e-2"));
    assert!(clean > 8.5e9, "{clean}");
    assert!(lossy > 0.9 * clean, "{lossy} of {clean}");
}

#[test]
fn threads_make_no_difference() {
    let of = |threads| {
        let outcome = run("accelerators = 'both'\nloss = 1e-2", WHOLE, "", threads);
        format!("{outcome:?}")
    };
    assert_eq!(of(1), of(2));
}

#[test]
fn two_paths_carry_twice_as_much() {
    let paths = |count: usize| {
        let link = |path: usize| {
            let side = if path == 1 { String::new() } else { path.to_string() };
            format!(
                "[[link]]\nname = 'wan{path}'\nbetween = ['near.wan{side}', 'far.wan{side}']\n\
                 distance = '400km'\nrate = '5G'\n"
            )
        };
        let text = format!(
            "[[host]]\nname = 'a'\nnic = 'connectx6'\n[[host]]\nname = 'b'\nnic = 'connectx6'\n\
             [[accelerator]]\nname = 'near'\n{WHOLE}\nmode = 'far'\n[[accelerator]]\nname = 'far'\n\
             {WHOLE}\nmode = 'far'\n\
             [[link]]\nbetween = ['a', 'near.lan']\n[[link]]\nbetween = ['far.lan', 'b']\n{}\
             [[flow]]\nfrom = 'a'\nto = 'b'\nsize = '64K'\nduration = '200ms'\nconnect = 'cm'\n",
            (1..=count).map(link).collect::<String>()
        );
        goodput(&outcome(&text, 1))
    };
    let (one, two) = (paths(1), paths(2));
    assert!(one > 4.5e9 && two > 1.9 * one, "{one} by one path, {two} by two");
}
