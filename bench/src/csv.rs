//! Cells as comma-separated values.

use crate::assess::{Assessment, Cell, Verdict};
use crate::record::Source;
use std::collections::BTreeSet;

/// `lines` as RFC 4180 has them.
pub(crate) fn written(lines: &[Vec<String>]) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for line in lines {
        // Lines of equal length in memory cannot fail.
        let _ = writer.write_record(line);
    }
    let bytes = writer.into_inner().unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Columns of a source with repeated runs.
const REPEATED: [&str; 9] =
    ["min", "max", "runs", "n", "q1", "median", "q3", "median_low", "median_high"];

impl Assessment {
    /// One line per cell, numbers in the units of their names and in full: `experiment`,
    /// parameters, `value`, then of each source its mean, and of those that are not the reference
    /// `_deviation_percent` and `_verdict`; of repeated runs `_min`, `_max`, `_runs` and those of
    /// [`Statistics`](crate::Statistics); `fitted` names the sources that were fitted there.
    pub fn csv(&self) -> String {
        let parameters: BTreeSet<&str> =
            self.cells().iter().flat_map(|cell| cell.point.iter().map(|(key, _)| key)).collect();
        let is_repeated = |source: &Source| {
            self.cells()
                .iter()
                .any(|cell| cell.figures.get(source).is_some_and(|figure| figure.samples.n() > 1))
        };
        let repeated: Vec<Source> = self.sources().iter().copied().filter(is_repeated).collect();
        let judged: BTreeSet<Source> =
            self.cells().iter().flat_map(|cell| cell.judgements.keys().copied()).collect();
        let sources: BTreeSet<Source> = self.sources().iter().chain(&judged).copied().collect();
        let mut header = vec!["experiment".to_owned()];
        header.extend(parameters.iter().map(|key| (*key).to_owned()));
        header.push("value".to_owned());
        for source in &sources {
            let name = source.name();
            header.push(name.to_owned());
            if repeated.contains(source) {
                header.extend(REPEATED.map(|what| format!("{name}_{what}")));
            }
            if judged.contains(source) {
                header
                    .extend(["deviation_percent", "verdict"].map(|what| format!("{name}_{what}")));
            }
        }
        header.extend(["fitted".to_owned(), "suspect".to_owned(), "note".to_owned()]);
        let mut lines = vec![header];
        for cell in self.cells() {
            let mut line = vec![self.experiment().name.clone()];
            line.extend(parameters.iter().map(|key| {
                let value = cell.point.get(key);
                value.map_or(String::new(), ToString::to_string)
            }));
            line.push(cell.value.clone());
            for &source in &sources {
                figure_fields(
                    cell,
                    source,
                    repeated.contains(&source),
                    judged.contains(&source),
                    &mut line,
                );
            }
            line.push(fitted(cell));
            line.push(if cell.suspect { "yes" } else { "" }.to_owned());
            line.push(notes(cell));
            lines.push(line);
        }
        written(&lines)
    }
}

fn figure_fields(
    cell: &Cell,
    source: Source,
    repeated: bool,
    judged: bool,
    line: &mut Vec<String>,
) {
    let figure = cell.figures.get(&source);
    let number = |number: Option<f64>| number.map_or(String::new(), |number| number.to_string());
    line.push(number(figure.map(|figure| figure.mean)));
    if repeated {
        let spread = figure.map(|figure| figure.samples.statistics());
        let interval = spread.as_ref().and_then(|spread| spread.median_interval.as_ref());
        line.extend([
            number(figure.map(|figure| figure.min)),
            number(figure.map(|figure| figure.max)),
            number(figure.map(|figure| f64::from(figure.runs))),
            number(spread.as_ref().map(|spread| spread.n as f64)),
            number(spread.as_ref().map(|spread| spread.q1)),
            number(spread.as_ref().map(|spread| spread.median)),
            number(spread.as_ref().map(|spread| spread.q3)),
            number(interval.map(|interval| *interval.start())),
            number(interval.map(|interval| *interval.end())),
        ]);
    }
    if judged {
        let judgement = cell.judgements.get(&source);
        line.push(number(judgement.and_then(|j| j.deviation).map(|d| d * 100.0)));
        let verdict = judgement.map_or("", |judgement| match judgement.verdict {
            Verdict::Within => "within",
            Verdict::Beyond => "beyond",
            Verdict::Missing => "missing",
            Verdict::Unjudged => "",
        });
        line.push(verdict.to_owned());
    }
}

fn fitted(cell: &Cell) -> String {
    let sources =
        Source::ALL.into_iter().filter(|source| cell.figures.get(source).is_some_and(|f| f.fitted));
    sources.map(Source::name).collect::<Vec<_>>().join(" ")
}

fn notes(cell: &Cell) -> String {
    let notes = cell.figures.iter().filter_map(|(source, figure)| {
        figure.note.as_ref().map(|note| format!("{}: {note}", source.name()))
    });
    let failures =
        cell.failures.iter().map(|(source, why)| format!("{} failed: {why}", source.name()));
    notes.chain(failures).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use crate::*;

    #[test]
    fn a_line_has_every_figure_in_full_and_fields_with_commas_in_quotes() {
        let point = || Point::new().with("op", "read, \"long\"").with("message_bytes", 4096);
        let records = [
            Record::new("x", Source::Published, point()).value("goodput_bps", 2e9),
            Record::new("x", Source::Simulated, point())
                .value("goodput_bps", 2.05e9)
                .note("queue depth")
                .fitted(),
        ];
        let experiment = Experiment {
            expectations: vec![Expectation::percent("goodput_bps", 1.0)],
            ..Experiment::new("x", "")
        };
        let csv = Assessment::new(&experiment, &records).csv();
        let expected = "experiment,message_bytes,op,value,published,simulated,\
                        simulated_deviation_percent,\
                        simulated_verdict,fitted,suspect,note\n\
                        x,4096,\"read, \
                        \"\"long\"\"\",goodput_bps,2000000000,2050000000,2.5,beyond,simulated,,\
                        simulated: queue depth\n";
        assert_eq!(csv, expected);
    }
}
