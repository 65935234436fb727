//! `longhaul report --power`: energy per bit and its reduction, beside the published ones.

use crate::labs::{Row, Table};
use crate::output;
use crate::output::table::blocks;
use crate::problem::Problem;
use longhaul_bench::{
    Baseline, Energy, POWERTOP, Quantity, Record, ResultFile, Samples, Saving, Scalar, Source,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;

/// The published energies.
const TABLE: &str = "iown1_power";
/// What they are called.
const TITLE: &str =
    "Published: IOWN Global Forum, RDMA over Open APN PoC report (June 2024), table 9";
/// The parameter of a baseline that is named by its value alone.
const PROGRAM: &str = "program";

/// Options of `longhaul report`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Print energy per bit and its reduction against a program of the campaign, such as tcp, or
    /// against the runs with another parameter's value
    #[arg(
        long,
        value_name = "[KEY=]VALUE",
        conflicts_with_all = ["out", "csv", "svg", "markdown", "check"]
    )]
    power: Option<String>,
    /// Power of runs without a recorded one, such as simulated ones, of both ends together;
    /// repeated for other values of the baseline's parameter
    #[arg(long, value_name = "[VALUE=]W", requires = "power", value_parser = stated)]
    watts: Vec<(Option<Scalar>, f64)>,
    /// Watts of a NIC to add to powertop's
    #[arg(long, value_name = "W", default_value = "23.6", requires = "power", value_parser = watts)]
    nic_watts: f64,
}

impl Options {
    /// The runs against which others are compared; `None` without `--power`.
    pub fn baseline(&self) -> Option<Baseline> {
        let text = self.power.as_deref()?;
        let (key, value) = text.split_once('=').unwrap_or((PROGRAM, text));
        Some(Baseline {
            key: key.to_owned(),
            value: scalar(value),
            stated_w: self.watts.iter().cloned().collect(),
            nic_w: self.nic_watts,
        })
    }
}

/// A parameter's value, as a point has it.
fn scalar(text: &str) -> Scalar {
    match text {
        "yes" | "true" => true.into(),
        "no" | "false" => false.into(),
        _ => text.parse::<f64>().map_or_else(|_| text.into(), Scalar::from),
    }
}

fn watts(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(watts) if (0.0..=1e9).contains(&watts) => Ok(watts),
        _ => Err("not a power: write watts, as in 25 or 23.6".to_owned()),
    }
}

fn stated(text: &str) -> Result<(Option<Scalar>, f64), String> {
    let (value, power) = match text.rsplit_once('=') {
        Some((value, power)) => (Some(scalar(value)), power),
        None => (None, text),
    };
    match watts(power)? {
        0.0 => Err("no power: write more than 0 W".to_owned()),
        power => Ok((value, power)),
    }
}

/// A row of the published table, and what was measured of its operation.
#[derive(Serialize)]
struct Published {
    operation: String,
    software_w: f64,
    software_s: f64,
    software_ws: f64,
    nic_w: f64,
    nic_s: f64,
    nic_ws: f64,
    reduction_percent: f64,
    /// Median over the points of the operation: of power times seconds in `post_send`, as the
    /// document has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    own_posting_reduction_percent: Option<f64>,
    /// Median over the points of the operation: of the energy per bit.
    #[serde(skip_serializing_if = "Option::is_none")]
    own_reduction_percent: Option<f64>,
}

/// Output of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    /// Version of this layout.
    schema: &'static str,
    baseline: BTreeMap<&'a str, &'a Scalar>,
    savings: &'a [Saving],
    published: &'a [Published],
    weaknesses: &'a [String],
}

/// Prints the energy of `files` against `baseline`.
pub fn report(
    options: &Options,
    baseline: Baseline,
    files: &[(PathBuf, ResultFile)],
    as_json: bool,
) -> Result<ExitCode, Problem> {
    let records: Vec<Record> =
        files.iter().flat_map(|(_, file)| file.records.iter().cloned()).collect();
    let savings = baseline.savings(&records);
    if savings.is_empty() {
        return Err(none(&baseline, &records));
    }
    let published = published(&savings)?;
    let weaknesses = weaknesses(options, &baseline, &savings);
    let text = if as_json {
        let document = Document {
            schema: "longhaul-power/1",
            baseline: [(baseline.key.as_str(), &baseline.value)].into(),
            savings: &savings,
            published: &published,
            weaknesses: &weaknesses,
        };
        output::to_json(&document)? + "\n"
    } else {
        text(&baseline, &savings, &published, &weaknesses, output::columns())
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Why there is nothing to compare.
fn none(baseline: &Baseline, records: &[Record]) -> Problem {
    let Baseline { key, value, .. } = baseline;
    let values = baseline.values(records);
    if !values.contains(value) {
        let known: Vec<String> = values.into_iter().map(ToString::to_string).collect();
        let cure = match known.is_empty() {
            true => format!("no run has the parameter {key}: name one, as in --power qps=1"),
            false => format!("there is {}", known.join(", ")),
        };
        return Problem::new(format!("no run has {key} = {value}"), cure);
    }
    let is_its = |record: &&Record| record.point.get(key) == Some(value);
    let has_power = |record: &Record| record.values.keys().any(|name| name.starts_with("power_"));
    let reasons: BTreeSet<&str> = records
        .iter()
        .filter(is_its)
        .flat_map(|record| &record.absent)
        .filter(|(name, _)| name.starts_with("power_") || *name == "energy")
        .map(|(_, why)| why.as_str())
        .collect();
    if baseline.stated_w.is_empty() && !records.iter().any(has_power) {
        let mut cause = "no run has a recorded power".to_owned();
        if !reasons.is_empty() {
            let reasons: Vec<&str> = reasons.into_iter().collect();
            cause += &format!(" ({})", reasons.join("; "));
        }
        return Problem::new(cause, "state it with --watts, as in --watts 25");
    }
    let cause = format!(
        "no run beside {key} = {value} has the same parameters, goodput and a power by the same \
         source"
    );
    Problem::new(cause, "measure both in one campaign, or state their power with --watts")
}

/// The operation of a point, as the published table calls it.
fn operation(saving: &Saving) -> Option<&'static str> {
    const OPERATIONS: [(&str, &str); 3] = [("write", "WRITE"), ("send", "SEND"), ("read", "READ")];
    let program = saving.command.split_whitespace().next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    let named = ["operation", "op", "flow.verb", PROGRAM];
    let named = named.iter().filter_map(|key| saving.point.get(key)).map(ToString::to_string);
    let words: Vec<String> = named.chain([program.to_owned()]).collect();
    OPERATIONS.iter().find_map(|(part, name)| {
        words.iter().any(|word| word.to_lowercase().contains(part)).then_some(*name)
    })
}

/// The published table beside `savings`.
fn published(savings: &[Saving]) -> Result<Vec<Published>, Problem> {
    let table = Table::named(TABLE)?;
    let row = |row: Row<'_>| {
        let name = row.text("operation");
        let ours = || savings.iter().filter(|saving| operation(saving) == Some(name));
        let median = |of: &dyn Fn(&Saving) -> Option<f64>| {
            Some(Samples::new(ours().filter_map(of))?.median())
        };
        Ok(Published {
            operation: name.to_owned(),
            software_w: row.number("software_w")?,
            software_s: row.number("software_s")?,
            software_ws: row.number("software_ws")?,
            nic_w: row.number("nic_w")?,
            nic_s: row.number("nic_s")?,
            nic_ws: row.number("nic_ws")?,
            reduction_percent: row.number("reduction_percent")?,
            own_posting_reduction_percent: median(&|saving| saving.posting_reduction_percent),
            own_reduction_percent: median(&|saving| Some(saving.reduction_percent)),
        })
    };
    table.rows().map(row).collect()
}

/// What the figures do not say.
fn weaknesses(options: &Options, baseline: &Baseline, savings: &[Saving]) -> Vec<String> {
    let powers: BTreeSet<&str> = savings.iter().map(|saving| saving.power.as_str()).collect();
    let mut all = vec![
        "The document compares software RoCE with a NIC, not TCP with RDMA. Its energy is power \
         times seconds in post_send: it leaves out polling, which is most of the time of both, \
         and compares different goodputs (20.5 and 98.3 Gbit/s)."
            .to_owned(),
        "Energy per bit includes what is drawn when idle, so the faster of two programs has the \
         smaller one even if both draw the same."
            .to_owned(),
    ];
    if powers.contains(POWERTOP) {
        all.push(format!(
            "powertop estimates a program's share of what the machine draws. {} W of the NIC are \
             added from its specification, as the document does; what it draws is not measured.",
            options.nic_watts
        ));
    }
    if powers.iter().any(|power| *power != POWERTOP && *power != "stated") {
        all.push(
            "Recorded power is that of the machine that ran 'longhaul measure', with all that ran \
             there: in a lab both ends and the fibre, over ssh neither end."
                .to_owned(),
        );
    }
    if powers.contains("stated") {
        let watts = |(value, watts): (&Option<Scalar>, &f64)| match value {
            Some(value) => format!("{watts} W for {value}"),
            None => format!("{watts} W"),
        };
        let stated: Vec<String> = baseline.stated_w.iter().map(watts).collect();
        let mut text = format!("Power is stated, not measured: {}.", stated.join(", "));
        if baseline.stated_w.len() == 1 {
            text += " With one power for all, the reduction is that of the time per bit.";
        }
        all.push(text);
    }
    if savings.iter().any(|saving| saving.source == Source::Simulated) {
        all.push("Simulated runs have goodput and no power of their own.".to_owned());
    }
    all
}

fn text(
    baseline: &Baseline,
    savings: &[Saving],
    published: &[Published],
    weaknesses: &[String],
    width: usize,
) -> String {
    let Baseline { key, value, .. } = baseline;
    let mut text = format!("Energy per bit against {key} = {value} (medians of the runs)\n");
    let keys = keys(key, savings);
    text += &blocks(&measured(&keys, value, savings), keys.len() + 1, width);
    let posted: Vec<&Saving> =
        savings.iter().filter(|saving| saving.posting_reduction_percent.is_some()).collect();
    if !posted.is_empty() {
        text += "\nPower times seconds in post_send, as the document has it\n";
        text += &blocks(&posting(&keys, value, &posted), keys.len() + 1, width);
    }
    text += &format!("\n{TITLE}\n{}", blocks(&of_document(published), 1, width));
    text += "\nWhat these figures do not say:\n";
    for weakness in weaknesses {
        text += &output::wrapped(&format!("- {weakness}"), width);
    }
    text
}

/// The baseline's parameter, and others that differ among the points.
fn keys<'a>(key: &'a str, savings: &'a [Saving]) -> Vec<&'a str> {
    let all: BTreeSet<&str> =
        savings.iter().flat_map(|saving| saving.point.iter().map(|(key, _)| key)).collect();
    let differs = |other: &&str| {
        *other != key
            && savings.iter().any(|saving| saving.point.get(other) != savings[0].point.get(other))
    };
    [key].into_iter().chain(all.into_iter().filter(differs)).collect()
}

/// The cells that tell whose figures a row has.
fn place(keys: &[&str], saving: &Saving) -> Vec<String> {
    let cell =
        |key: &&str| saving.point.get(key).map_or_else(String::new, |value| value.humanised(key));
    keys.iter().map(cell).chain([format!("{}, {}", saving.power, saving.source.name())]).collect()
}

fn heads(keys: &[&str], figures: &[String]) -> Vec<String> {
    let labels = keys.iter().map(|key| Quantity::of(key).label().to_owned());
    labels.chain(["power by".to_owned()]).chain(figures.iter().cloned()).collect()
}

fn measured(keys: &[&str], value: &Scalar, savings: &[Saving]) -> Vec<Vec<String>> {
    let figures = [
        format!("{value}, W"),
        "W".to_owned(),
        format!("{value}, goodput"),
        "goodput".to_owned(),
        format!("{value}, per bit"),
        "per bit".to_owned(),
        "runs".to_owned(),
        "reduction".to_owned(),
    ];
    let mut lines = vec![heads(keys, &figures)];
    let bps = |energy: &Energy| Quantity::of("goodput_bps").humanised(energy.goodput_bps);
    let joules = |energy: &Energy| Quantity::of("energy_nj").humanised(energy.per_bit_nj);
    for saving in savings {
        let Saving { baseline, own, .. } = saving;
        let figures = [
            format!("{:.2}", baseline.power_w),
            format!("{:.2}", own.power_w),
            bps(baseline),
            bps(own),
            joules(baseline),
            joules(own),
            format!("{}/{}", baseline.n, own.n),
            percent(Some(saving.reduction_percent)),
        ];
        lines.push(place(keys, saving).into_iter().chain(figures).collect());
    }
    lines
}

fn posting(keys: &[&str], value: &Scalar, savings: &[&Saving]) -> Vec<Vec<String>> {
    let figures = [
        format!("{value}, s"),
        "s".to_owned(),
        format!("{value}, W·s"),
        "W·s".to_owned(),
        "reduction".to_owned(),
    ];
    let mut lines = vec![heads(keys, &figures)];
    for saving in savings {
        let Saving { baseline, own, .. } = saving;
        let number = |figure: Option<f64>| figure.map_or("–".to_owned(), |f| format!("{f:.4}"));
        let figures = [
            number(baseline.posting_s),
            number(own.posting_s),
            number(baseline.posting_ws),
            number(own.posting_ws),
            percent(saving.posting_reduction_percent),
        ];
        lines.push(place(keys, saving).into_iter().chain(figures).collect());
    }
    lines
}

fn of_document(published: &[Published]) -> Vec<Vec<String>> {
    let heads = [
        "operation",
        "software W",
        "s",
        "W·s",
        "NIC W",
        "s",
        "W·s",
        "reduction",
        "here, by post_send",
        "here, per bit",
    ];
    let mut lines = vec![heads.map(str::to_owned).to_vec()];
    for row in published {
        lines.push(vec![
            row.operation.clone(),
            row.software_w.to_string(),
            row.software_s.to_string(),
            format!("{:.2}", row.software_ws),
            row.nic_w.to_string(),
            row.nic_s.to_string(),
            format!("{:.2}", row.nic_ws),
            percent(Some(row.reduction_percent)),
            percent(row.own_posting_reduction_percent),
            percent(row.own_reduction_percent),
        ]);
    }
    lines
}

fn percent(figure: Option<f64>) -> String {
    figure.map_or("–".to_owned(), |figure| format!("{figure:.2} %"))
}
