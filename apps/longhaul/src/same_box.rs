//! `accelerate`, `lab` and `sim` build the same box for the same path, except for the differences
//! listed here; `emulate` and `lab` build the same fibre.

use crate::accelerate;
use crate::lab;
use longhaul_boxes::settings::Emulation;
use longhaul_lab::Spec;
use longhaul_wan_box::{Config, Whole};

const PATH: [&str; 2] =
    ["--rate 10G --distance 1000km --memory 4G", "rate = \"10G\"\ndistance = \"1000km\""];

/// An intended difference from `accelerate`.
struct Difference {
    what: &'static str,
    why: &'static str,
    /// Whether a box has the difference; only a whole box has all.
    is_there: fn(&Config, &Config) -> bool,
    /// Makes the second equal to the first.
    mend: fn(&Config, &mut Config),
}

fn near(
    of: fn(&mut longhaul_accel::Config, &longhaul_accel::Config),
    from: &Config,
    to: &mut Config,
) {
    of(&mut to.near, &from.near);
}

fn halves(
    of: fn(&mut longhaul_accel::Config, &longhaul_accel::Config),
    from: &Config,
    to: &mut Config,
) {
    near(of, from, to);
    if let (Some(from), Some(to)) = (&from.whole, &mut to.whole) {
        of(&mut to.far, &from.far);
    }
}

fn transport(
    of: fn(&mut longhaul_wan::Config, &longhaul_wan::Config),
    from: &Config,
    to: &mut Config,
) {
    if let (Some(from), Some(to)) = (&from.whole, &mut to.whole) {
        of(&mut to.transport, &from.transport);
    }
}

fn seal(
    of: fn(&mut longhaul_seal::Config, &longhaul_seal::Config),
    from: &Config,
    to: &mut Config,
) {
    if let (Some(from), Some(to)) = (&from.whole, &mut to.whole)
        && let (Some(from), Some(to)) = (&from.seal, &mut to.seal)
    {
        of(to, from);
    }
}

fn whole(config: &Config) -> Option<&Whole> {
    config.whole.as_deref()
}

const OF_ALL: &[Difference] = &[
    Difference {
        what: "seed",
        why: "the operating system seeds real boxes; the scenario seeds repeatable runs",
        is_there: |from, to| from.near.seed != to.near.seed,
        mend: |from, to| halves(|to, from| to.seed = from.seed, from, to),
    },
    Difference {
        what: "transport.box_id, transport.seed",
        why: "real boxes have random names, those of a scenario their number",
        is_there: |from, to| {
            whole(from).map(|it| it.transport.box_id) != whole(to).map(|it| it.transport.box_id)
        },
        mend: |from, to| {
            transport(|to, from| (to.box_id, to.seed) = (from.box_id, from.seed.clone()), from, to)
        },
    },
];

const OF_LAB: &[Difference] = &[
    Difference {
        what: "burst_bytes",
        why: "one thread drives a whole lab: the link's queue takes the burst of a late turn",
        is_there: |from, to| from.near.burst_bytes < to.near.burst_bytes,
        mend: |from, to| {
            halves(|to, from| to.burst_bytes = from.burst_bytes, from, to);
            transport(|to, from| to.paths.clone_from(&from.paths), from, to);
        },
    },
    Difference {
        what: "rto_min",
        why: "the lab's programs share processors, and answer when they are scheduled",
        is_there: |from, to| match (whole(from), whole(to)) {
            (Some(from), Some(to)) => from.far.rto_min < to.far.rto_min,
            _ => from.near.rto_min < to.near.rto_min,
        },
        mend: |from, to| halves(|to, from| to.rto_min = from.rto_min, from, to),
    },
];

const OF_SIM: &[Difference] = &[
    Difference {
        what: "lan_rate",
        why: "the simulator knows the rate of the LAN's cables",
        is_there: |from, to| from.near.lan_pacing != to.near.lan_pacing,
        mend: |from, to| {
            halves(
                |to, from| {
                    to.lan_pacing.clone_from(&from.lan_pacing);
                    to.wan_pacing.clone_from(&from.wan_pacing);
                },
                from,
                to,
            );
        },
    },
    Difference {
        what: "ack_window_bytes, and values derived from it",
        why: "the simulator includes the path to the hosts: 25 ns of LAN at each end",
        is_there: |from, to| {
            let (from, to) = (from.near.ack_window_bytes, to.near.ack_window_bytes);
            from < to && to - from < from / 10_000
        },
        mend: |from, to| {
            halves(
                |to, from| {
                    to.ack_window_bytes = from.ack_window_bytes;
                    to.ack_first_bytes = from.ack_first_bytes;
                    to.flow_bytes_max = from.flow_bytes_max;
                    to.rto_min = from.rto_min;
                    to.rto_initial = from.rto_initial;
                },
                from,
                to,
            );
            transport(
                |to, from| {
                    to.send_bytes_max = from.send_bytes_max;
                    to.receive_bytes_max = from.receive_bytes_max;
                },
                from,
                to,
            );
        },
    },
];

const OF_SIM_SEALED: &[Difference] = &[
    Difference {
        what: "seal.private_key, seal.peers, seal.seed",
        why: "real keys are in files; those of a scenario are derived from its seed",
        is_there: |from, to| {
            let key = |config| Some(whole(config)?.seal.as_ref()?.private_key.public());
            key(from) != key(to)
        },
        mend: |from, to| {
            seal(
                |to, from| {
                    to.private_key = from.private_key.clone();
                    to.peers.clone_from(&from.peers);
                    to.seed = from.seed.clone();
                },
                from,
                to,
            );
        },
    },
    Difference {
        what: "seal.ciphers",
        why: "real boxes prefer what their processor is fast at; runs are the same on all machines",
        // Processors with AES prefer it, as a scenario does.
        is_there: |_, _| true,
        mend: |from, to| seal(|to, from| to.ciphers.clone_from(&from.ciphers), from, to),
    },
];

#[track_caller]
fn assert_same(from: &Config, mut to: Config, differences: &[&[Difference]]) {
    for Difference { what, why, is_there, mend } in differences.iter().copied().flatten() {
        let has_none = what.starts_with("transport") && from.whole.is_none();
        assert!(
            has_none || is_there(from, &to),
            "{what} is listed as another, because {why}, and is the same"
        );
        mend(from, &mut to);
    }
    assert_eq!(from.near, to.near);
    assert_eq!(whole(from).map(|it| &it.far), whole(&to).map(|it| &it.far));
    assert_eq!(whole(from).map(|it| &it.transport), whole(&to).map(|it| &it.transport));
    // The seed is random in a real box, and the scenario's elsewhere.
    let read_ahead = |config| {
        let of = whole(config)?.read_ahead.clone()?;
        Some(longhaul_readahead::Config { seed: 0, ..of })
    };
    assert_eq!(read_ahead(from), read_ahead(&to));
    let sealed = |config| whole(config).map(|it| format!("{:?}", it.seal));
    assert_eq!(sealed(from), sealed(&to));
}

/// A box of the simulator with these further settings.
fn of_sim(settings: &str) -> Config {
    let text = format!(
        "[path]\n{}\naccelerators = \"both\"\n[path.accelerator]\nmemory = \"4G\"\n\
         {settings}\n[[flow]]\n",
        PATH[1]
    );
    let nothing = |name: &str| panic!("asks for {name}");
    let file = longhaul_sim::file::ScenarioFile::parse("path.toml", &text).unwrap();
    let loaded = file.load(&mut |name| nothing(name)).unwrap_or_else(|why| panic!("{why}"));
    let kinds = loaded.scenario.stations.into_iter().map(|station| station.kind);
    let boxes = kinds.filter_map(|kind| match kind {
        longhaul_sim::StationKind::Box(config) => Some(*config),
        _ => None,
    });
    boxes.last().expect("two boxes")
}

#[test]
fn of_an_accelerator_alone() {
    let real = accelerate::box_config(PATH[0]);
    assert_same(&real, lab::box_config(&format!("{} --accelerate", PATH[0])), &[OF_ALL, OF_LAB]);
    assert_same(&real, of_sim(""), &[OF_ALL, OF_SIM]);
}

#[test]
fn of_a_whole_box() {
    let real = accelerate::box_config(&format!("{} --transport", PATH[0]));
    let in_lab = lab::box_config(&format!("{} --accelerate transport", PATH[0]));
    assert_same(&real, in_lab, &[OF_ALL, OF_LAB]);
    assert_same(&real, of_sim("transport = true"), &[OF_ALL, OF_SIM]);
}

#[test]
fn of_a_whole_box_that_reads_ahead() {
    let real = accelerate::box_config(&format!("{} --transport --read-ahead nvme,rpc", PATH[0]));
    let in_lab = lab::box_config(&format!("{} --accelerate read-ahead", PATH[0]));
    assert!(whole(&real).unwrap().read_ahead.is_some());
    assert_same(&real, in_lab, &[OF_ALL, OF_LAB]);
    let simulated = of_sim("transport = true\nread_ahead = ['nvme', 'rpc']");
    assert_same(&real, simulated, &[OF_ALL, OF_SIM]);
}

#[test]
fn of_a_sealed_box() {
    use longhaul_seal::{PrivateKey, Seed};
    use std::os::unix::fs::PermissionsExt;
    let key = |number| PrivateKey::generate(&Seed::of_scenario(number));
    let file = std::env::temp_dir().join(format!("longhaul-same-box-{}", std::process::id()));
    std::fs::write(&file, key(1).to_text().as_bytes()).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let keys = format!("--key {} --peer near={}", file.display(), key(2).public());
    let cases = [
        ("", ""),
        ("--key-optional", "key_optional = true"),
        ("--clear 10.9.0.0/16 --clear fd00::/8", "clear = ['10.9.0.0/16', 'fd00::/8']"),
        ("--read-ahead nvme", "read_ahead = 'nvme'"),
    ];
    let real = cases.map(|(flags, _)| {
        accelerate::box_config(&format!("{} --transport {keys} {flags}", PATH[0]))
    });
    std::fs::remove_file(&file).unwrap();
    for (real, (_, settings)) in real.iter().zip(cases) {
        assert!(whole(real).unwrap().seal.is_some());
        let simulated = of_sim(&format!("transport = true\nkey = 'k'\n{settings}"));
        assert_same(real, simulated, &[OF_ALL, OF_SIM, OF_SIM_SEALED]);
    }
}

/// The options of one command.
#[derive(clap::Parser)]
struct Cli<A: clap::Args> {
    #[command(flatten)]
    args: A,
}

fn parsed<A: clap::Args>(options: &[&str]) -> A {
    let words = std::iter::once("longhaul").chain(options.iter().copied());
    <Cli<A> as clap::Parser>::try_parse_from(words).unwrap_or_else(|e| panic!("{e}")).args
}

#[test]
fn of_a_fibre() {
    for options in [
        "",
        "--distance 1000km --rate 1G",
        "--loss 1e-4 --queue 2M --ecn",
        "--ecn 64K:1M --memory 1G --seed 7",
    ] {
        let options: Vec<&str> = options.split_whitespace().collect();
        let (emulated, lab): (Emulation, Spec) = (parsed(&options), parsed(&options));
        assert_eq!(emulated.fibre().unwrap(), lab.fibre(), "{options:?}");
    }
}

#[test]
fn of_a_fibre_with_rules_and_changes() {
    let lists = [
        ["--rule", "read-response from b: lose 2%"],
        ["--rule", "qpn 0x18: mark"],
        ["--at", "20s cut 40ms"],
        ["--at", "5s-30s loss 1e-4"],
    ];
    let options = lists.as_flattened();
    let written = serde_json::to_string(&parsed::<Spec>(options)).unwrap();
    let read: Spec = serde_json::from_str(&written).unwrap();
    let link = parsed::<Emulation>(options).link().unwrap();
    let config = link.config();
    assert_eq!((&read.fibre().rules, &read.fibre().changes), (&config.rules, &config.changes));
    assert_eq!((config.rules.len(), config.changes.len()), (2, 2));
}
