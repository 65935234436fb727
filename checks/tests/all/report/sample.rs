//! Results of every shape that reports must show: the published tables, with similar figures in
//! place of a planner's and a simulator's.

use longhaul_bench::*;
use std::path::Path;

/// A deterministic pseudo-random number from −1 to 1.
fn noise(seed: u64) -> f64 {
    let mut x = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((x ^ (x >> 29)) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
}

fn provenance(seed: u64) -> Provenance {
    Provenance {
        longhaul: "0.1.0".to_owned(),
        seed: Some(seed),
        repeat: None,
        command: "longhaul reproduce --threads 2".to_owned(),
        started_at: "2026-01-02T03:04:05Z".to_owned(),
        wall_s: 0.25,
        host: "bench-1".to_owned(),
        threads: 2,
        environment: Default::default(),
    }
}

/// Lines of a published table with the names of its columns.
fn published(name: &str) -> (Vec<String>, Vec<Vec<String>>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../labs/published").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let split = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<_>>();
    let header = split(lines.next().expect("a header"));
    (header, lines.map(split).collect())
}

fn labels(pairs: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    pairs.iter().map(|(key, label)| ((*key).to_owned(), (*label).to_owned())).collect()
}

const VERBS: [(&str, &str); 5] = [
    ("write", "WRITE"),
    ("send", "SEND"),
    ("read", "READ"),
    ("message_bytes", "message"),
    ("qps", "QPs"),
];

/// A prediction and a simulation near `figure`.
fn near(experiment: &Experiment, cell: &PublishedCell, value: &str, records: &mut Vec<Record>) {
    let figure = cell.values[value];
    let seed = records.len() as u64;
    let of = |source, factor: f64| {
        Record::new(&experiment.name, source, cell.point.clone())
            .value(value, figure * factor)
            .from_run(provenance(1))
    };
    let limit = if figure < 60e9 { "limit: outstanding WQEs" } else { "limit: line rate" };
    let predicted = of(Source::Predicted, 1.0 + 0.006 * noise(seed)).note(limit);
    let simulated = of(Source::Simulated, 1.0 + 0.009 * noise(seed + 7));
    let is_fitted = cell.point.get("message_bytes").and_then(Scalar::as_number) == Some(65_536.0);
    records.extend(if is_fitted {
        [predicted.fitted(), simulated.fitted()]
    } else {
        [predicted, simulated]
    });
}

fn throughput_380km(records: &mut Vec<Record>) -> Experiment {
    let mut experiment = Experiment {
        about: "Goodput of perftest's bandwidth tests between two sites 380 km apart, the maximum \
                of 20 runs. WRITE and SEND keep 128 WQEs of each of 4 QPs outstanding, READ 16 of \
                each of 16."
            .to_owned(),
        document: Some(Document {
            title: "IOWN GF, RDMA over Open APN, PoC report".to_owned(),
            place: "Table C-1".to_owned(),
        }),
        x: Some("message_bytes".to_owned()),
        series: vec!["op".to_owned()],
        labels: labels(&VERBS),
        expectations: vec![
            Expectation::percent("goodput_bps", 1.0).only("op", "read").between(
                "message_bytes",
                4096.0,
                262_144.0,
            ),
            Expectation::percent("goodput_bps", 0.8).only("op", "send").between(
                "message_bytes",
                4096.0,
                65_536.0,
            ),
        ],
        assumptions: vec![
            Assumption {
                what: "start-up of a READ".to_owned(),
                value: "17 µs".to_owned(),
                source: "one constant for all sizes".to_owned(),
                fitted_on: Some("READ at 64 KiB".to_owned()),
            },
            Assumption {
                what: "headers of a packet on the wire".to_owned(),
                value: "82 B".to_owned(),
                source: "Ethernet, IPv4, UDP, BTH, ICRC, FCS, preamble and gap".to_owned(),
                fitted_on: None,
            },
        ],
        remarks: vec![
            "SEND stays at 92 Gbit/s above 64 KiB in the document, which says no reason."
                .to_owned(),
        ],
        ..Experiment::new("iown2-c1", "Throughput over 380 km")
    };
    let (header, rows) = published("iown2_c1_throughput_380km.csv");
    for row in rows {
        let bytes: u32 = row[0].parse().expect("a size");
        for op in ["write", "send", "read"] {
            let column = header.iter().position(|h| *h == format!("{op}_max")).expect("a column");
            let figure: f64 = row[column].parse().expect("a figure");
            let point = Point::new()
                .with("op", op)
                .with("message_bytes", bytes)
                .with("distance_km", 380)
                .with("mtu_bytes", 4096);
            let cell = PublishedCell::new(point, "goodput_bps", figure * 1e9);
            near(&experiment, &cell, "goodput_bps", records);
            let is_suspect = op == "write" && bytes == 8192;
            experiment.published.push(if is_suspect {
                cell.suspect("the printed row repeats the one at 16 KiB")
            } else {
                cell
            });
        }
    }
    experiment
}

fn latency_380km(records: &mut Vec<Record>) -> Experiment {
    let mut experiment = Experiment {
        document: Some(Document {
            title: "IOWN GF, PoC report".to_owned(),
            place: "Table D-1".to_owned(),
        }),
        series: vec!["op".to_owned(), "tx_depth".to_owned()],
        labels: labels(&VERBS),
        expectations: vec![Expectation::percent("latency_us", 1.0).of(Source::Simulated)],
        ..Experiment::new("iown2-d1", "Latency over 380 km")
    };
    let (_, rows) = published("iown2_d1_latency_380km.csv");
    for row in rows {
        let bytes: u32 = row[0].parse().expect("a size");
        for (column, (op, depth)) in [
            ("write", 128),
            ("write", 2048),
            ("send", 128),
            ("send", 2048),
            ("read", 128),
            ("read", 2048),
        ]
        .into_iter()
        .enumerate()
        {
            let figure: f64 = row[column + 1].parse().expect("a figure");
            let point =
                Point::new().with("op", op).with("tx_depth", depth).with("message_bytes", bytes);
            let cell = PublishedCell::new(point, "latency_us", figure);
            near(&experiment, &cell, "latency_us", records);
            experiment.published.push(cell);
        }
    }
    experiment
}

fn distance_collapse(records: &mut Vec<Record>) -> Experiment {
    let mut experiment = Experiment {
        expectations: vec![Expectation::new("goodput_bps", Tolerance::Absolute(0.05e9))],
        ..Experiment::new("ntt-distance", "Standard RDMA over distance")
    };
    let (_, rows) = published("ntt_distance_throughput.csv");
    for row in rows {
        let (km, figure): (f64, f64) =
            (row[0].parse().expect("km"), row[3].parse().expect("a figure"));
        let cell =
            PublishedCell::new(Point::new().with("distance_km", km), "goodput_bps", figure * 1e9);
        near(&experiment, &cell, "goodput_bps", records);
        experiment.published.push(cell);
    }
    experiment
}

/// Three frameworks at three distances, for which no figures are published.
fn frameworks(records: &mut Vec<Record>) -> Experiment {
    let experiment = Experiment {
        panel: Some("distance_km".to_owned()),
        series: vec!["framework".to_owned()],
        ..Experiment::new("ntt-frameworks", "Three ways to cover a distance")
    };
    for (framework, window) in
        [("standard RDMA", 100.0), ("RDMA over Open APN", 16_384.0), ("accelerator", 1e6)]
    {
        for km in [10, 100, 1000] {
            for power in 1..=23 {
                let bytes = 2_f64.powi(power);
                let goodput = (window * bytes * 8.0 / (f64::from(km) * 1e-5))
                    .min(98e9 * bytes / (bytes + 82.0));
                let point = Point::new()
                    .with("framework", framework)
                    .with("distance_km", km)
                    .with("message_bytes", bytes);
                for (source, factor) in [(Source::Predicted, 1.0), (Source::Simulated, 0.985)] {
                    let record = Record::new("ntt-frameworks", source, point.clone());
                    records.push(
                        record.value("goodput_bps", goodput * factor).from_run(provenance(1)),
                    );
                }
            }
        }
    }
    experiment
}

/// Loss with five seeds each, and the formula.
fn go_back_n(records: &mut Vec<Record>) -> Experiment {
    let experiment = Experiment {
        x: Some("loss".to_owned()),
        reference: Some(Source::Predicted),
        expectations: vec![Expectation::percent("goodput_bps", 3.0).of(Source::Simulated)],
        labels: labels(&[("loss", "probability of loss")]),
        ..Experiment::new("go-back-n", "What loss costs")
    };
    for rtt in [1_u32, 10, 100] {
        for power in 3..=7 {
            let loss = [1e-3, 1e-4, 1e-5, 1e-6, 1e-7][power - 3];
            let goodput = 97.5e9 / (1.0 + loss * f64::from(rtt) * 2988.0);
            let point = Point::new().with("loss", loss).with("rtt_ms", rtt);
            let of = |source| Record::new("go-back-n", source, point.clone());
            records.push(of(Source::Predicted).value("goodput_bps", goodput));
            for seed in 1..=5 {
                let off = 0.02 * noise(seed * 100 + u64::from(rtt) + power as u64);
                let simulated = of(Source::Simulated).value("goodput_bps", goodput * (1.0 + off));
                records.push(simulated.from_run(provenance(seed)));
            }
        }
    }
    experiment
}

fn grid(records: &mut Vec<Record>) -> Experiment {
    let experiment = Experiment {
        scattered: true,
        expectations: vec![Expectation::percent("goodput_bps", 2.0)],
        ..Experiment::new("grid", "Planner against simulator")
    };
    for i in 0..512_u64 {
        let point = Point::new()
            .with("distance_km", 10 << (i % 8))
            .with("message_bytes", 512 << (i / 8 % 8))
            .with("qps", [1, 4, 16, 64, 256, 1024, 2048, 4096][(i / 64) as usize]);
        let goodput = 1e8 * 1000_f64.powf((noise(i) + 1.0) / 2.0);
        let of = |source, figure| {
            Record::new("grid", source, point.clone()).value("goodput_bps", figure)
        };
        records.push(of(Source::Simulated, goodput));
        records.push(of(Source::Predicted, goodput * (1.0 + 0.021 * noise(i + 1000))));
    }
    experiment
}

fn power(records: &mut Vec<Record>) -> Experiment {
    let experiment =
        Experiment { x: Some("op".to_owned()), ..Experiment::new("power", "Energy of posting") };
    for (op, software, nic) in
        [("WRITE", 2946.5, 2.01), ("SEND", 2874.26, 2.17), ("READ", 185.82, 2.03)]
    {
        for (how, figure) in [("software", software), ("NIC", nic)] {
            let point = Point::new().with("op", op).with("transport", how);
            for source in [Source::Published, Source::Predicted] {
                records
                    .push(Record::new("power", source, point.clone()).value("energy_ws", figure));
            }
        }
    }
    experiment
}

/// All of it.
pub fn results() -> (Vec<Experiment>, Vec<Record>) {
    let mut records = Vec::new();
    let makers =
        [throughput_380km, latency_380km, distance_collapse, frameworks, go_back_n, grid, power];
    let experiments = makers.into_iter().map(|make| make(&mut records)).collect();
    (experiments, records)
}

/// A campaign of repeated runs over distances, sizes and accelerators, with single observations,
/// and predictions and simulations at the same points.
pub fn campaign() -> (Vec<Experiment>, Vec<Record>) {
    let experiment = Experiment {
        x: Some("message_bytes".to_owned()),
        ..Experiment::new("campaign", "WRITE over distance")
    };
    let mut records = Vec::new();
    for (i, accelerate) in (0..).zip(["none", "both"]) {
        for km in [0, 100, 1000] {
            for bytes in [4096, 65_536, 1 << 20, 8 << 20] {
                let point = Point::new()
                    .with("accelerate", accelerate)
                    .with("distance_km", km)
                    .with("message_bytes", bytes);
                let ceiling = 9.8e9 * f64::from(bytes) / f64::from(bytes + (1 << 16));
                let goodput = if i == 0 { ceiling / (1.0 + f64::from(km) / 50.0) } else { ceiling };
                let of = |source, figure: f64| {
                    Record::new("campaign", source, point.clone()).value("goodput_bps", figure)
                };
                records.push(of(Source::Predicted, goodput * 1.01));
                records.push(of(Source::Simulated, goodput * 0.99).from_run(provenance(1)));
                // Accelerated runs over 1000 km are few.
                let runs = if i == 1 && km == 1000 { 3 } else { 7 };
                for run in 0..runs {
                    let seed = u64::from(bytes as u32 / 4096 + km) * 100 + run;
                    let outlier = if run == 6 { 0.8 } else { 1.0 };
                    let goodput = goodput * (1.0 + 0.02 * noise(seed)) * outlier;
                    let repeat = Some(run as u32 + 1);
                    let made = Provenance { seed: None, repeat, ..provenance(0) };
                    let latencies = (0..200).map(|i| 5e4 * (2.0 + noise(seed * 1000 + i)));
                    let record = of(Source::Measured, goodput).from_run(made);
                    records.push(record.with_samples("latency_ns", latencies.collect()));
                }
            }
        }
    }
    (vec![experiment], records)
}

/// Extreme results: long names with markup, many categories, figures over many decades, zeros.
pub fn awkward() -> (Vec<Experiment>, Vec<Record>) {
    let long =
        "<b>a name that says & says \"more\" than anybody would ever want to read</b>".repeat(3);
    let mut records = Vec::new();
    let mut add = |experiment: &str, point: Point, value: &str, figure: f64| {
        for (source, factor) in
            [(Source::Published, 1.0), (Source::Predicted, 1.3), (Source::Measured, 0.9)]
        {
            let record =
                Record::new(experiment, source, point.clone()).value(value, figure * factor);
            records.push(record.note(long.clone()).from_run(provenance(u64::MAX)));
        }
    };
    for i in 0..7 {
        for j in 0..30 {
            let of = |x: Scalar| Point::new().with("series", format!("{i} {long}")).with("x", x);
            add("categories", of(format!("{j} {long}").into()), "latency_ns", 10_f64.powi(j - 3));
            add("decades", of(10_f64.powi(j - 8).into()), "goodput_bps", 10_f64.powi(j - 10));
            let zero = if j == 0 { 0.0 } else { f64::from(j) };
            add("zeros", of((zero * 1e12).into()), "count", zero * f64::from(i) * 1e13);
        }
    }
    for j in 0..2000 {
        let point = Point::new().with("a", j % 50).with("b", j % 43).with("c", format!("{j}"));
        add("sweep", point, "goodput_bps", f64::from(j));
    }
    let labels = labels(&[("x", &long), ("latency_ns", &long), ("count", &long)]);
    let describe = |name: &&str| Experiment {
        labels: labels.clone(),
        about: long.clone(),
        ..Experiment::new(name, &long)
    };
    (["categories", "decades", "zeros", "sweep"].iter().map(describe).collect(), records)
}
