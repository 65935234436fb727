//! Everything in one place: one HTML file, text, JSON, CSV, SVG.

mod page;
mod section;

use crate::assess::{Assessment, Counts, Tally};
use crate::distributions::{Picture, distributions, maps};
use crate::expectation::Basis;
use crate::experiment::Experiment;
use crate::figures::figures;
use crate::plot::{HeatMap, PlotError};
use crate::record::{Record, SCHEMA};
use crate::results::ResultFile;
use crate::spread::spreads;
use crate::table::tables;
use serde::Serialize;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Characters in a line of text.
const TEXT_WIDTH: usize = 100;
/// What a column of a document can hold, in characters.
const MARKDOWN_WIDTH: usize = 140;

/// What a report concludes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Experiments.
    pub experiments: usize,
    /// Of these, those in which something is off or missing.
    pub experiments_off: usize,
    /// Figures.
    #[serde(flatten)]
    pub tally: Tally,
}

impl Summary {
    /// True when everything that was expected is there and close enough.
    pub fn is_met(&self) -> bool {
        self.experiments_off == 0
    }
}

/// Why a report could not be written.
#[derive(Debug, Error)]
pub enum ReportError {
    /// A plot.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// By the operating system.
    #[error("cannot write {path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// A report. A function of what is put into it: the same results give the same bytes.
#[derive(Clone, Debug)]
pub struct Report {
    title: String,
    notices: Vec<String>,
    assessments: Vec<Assessment>,
    maps: Vec<HeatMap>,
}

impl Report {
    /// Without experiments yet.
    pub fn new(title: &str) -> Self {
        Report {
            title: title.to_owned(),
            notices: Vec::new(),
            assessments: Vec::new(),
            maps: Vec::new(),
        }
    }

    /// With one more experiment and its results; others among `records` are left out.
    #[must_use]
    pub fn experiment(mut self, experiment: &Experiment, records: &[Record]) -> Self {
        self.assessments.push(Assessment::new(experiment, records));
        self
    }

    /// With a heat map, which the HTML shows after the experiments.
    #[must_use]
    pub fn heat_map(mut self, map: HeatMap) -> Self {
        self.maps.push(map);
        self
    }

    /// With a paragraph above everything, such as that a file was cut.
    #[must_use]
    pub fn notice(mut self, text: impl Into<String>) -> Self {
        self.notices.push(text.into());
        self
    }

    /// Of files of results, which are named in notices. Experiments come in the order in which they
    /// are first described or have a result; those that no file describes are shown by what their
    /// records say.
    pub fn of_files(title: &str, files: &[(PathBuf, ResultFile)]) -> Self {
        let mut experiments: Vec<Experiment> = Vec::new();
        let mut records: Vec<Record> = Vec::new();
        for (_, file) in files {
            for described in &file.experiments {
                match experiments.iter_mut().find(|e| e.name == described.name) {
                    Some(there) => there.clone_from(described),
                    None => experiments.push(described.clone()),
                }
            }
            records.extend(file.records.iter().cloned());
        }
        for record in &records {
            if !experiments.iter().any(|e| e.name == record.experiment) {
                experiments.push(Experiment::new(&record.experiment, &record.experiment));
            }
        }
        let mut report = Report::new(title);
        for (path, file) in files {
            if let Some(damage) = &file.damage {
                let (name, line) = (path.display(), damage.line);
                report = report.notice(format!(
                    "{name}: its last line, {line}, was cut and is left out. What wrote it was \
                     probably interrupted; more results may be missing."
                ));
            }
        }
        experiments
            .iter()
            .fold(report, |report, experiment| report.experiment(experiment, &records))
    }

    /// Experiments with everything that is known of them.
    pub fn assessments(&self) -> &[Assessment] {
        &self.assessments
    }

    /// What it concludes.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary { experiments: self.assessments.len(), ..Summary::default() };
        for assessment in &self.assessments {
            summary.tally.add(assessment.tally());
            summary.experiments_off += usize::from(!assessment.is_met());
        }
        summary
    }

    /// What it concludes, in a sentence.
    pub fn outcome(&self) -> String {
        let count = self.assessments.len();
        let experiments =
            if count == 1 { "1 experiment".to_owned() } else { format!("{count} experiments") };
        format!("{experiments}: {}", outcome(&self.summary().tally))
    }

    /// One HTML file with everything in it: style, plots, tables. It asks nothing from any network
    /// and has no script.
    ///
    /// # Errors
    /// A plot cannot be drawn.
    pub fn html(&self) -> Result<String, ReportError> {
        page::render(self)
    }

    /// Writes [`Report::html`].
    ///
    /// # Errors
    /// A plot cannot be drawn, or the file cannot be written.
    pub fn write_html(&self, path: &Path) -> Result<(), ReportError> {
        write(path, &self.html()?)
    }

    /// Tables and the outcome for a terminal.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for notice in &self.notices {
            let _ = writeln!(text, "Note: {notice}\n");
        }
        for assessment in &self.assessments {
            let experiment = assessment.experiment();
            let _ = writeln!(text, "{}\n", page::title(experiment));
            let constants = assessment.constants();
            if !constants.is_empty() {
                let _ = writeln!(text, "{}\n", folded(&format!("Everywhere: {constants}")));
            }
            for table in tables(assessment, TEXT_WIDTH) {
                let _ = writeln!(text, "{}", table.text());
            }
            for spread in spreads(assessment) {
                let _ = writeln!(text, "{}", spread.text());
            }
            for exemption in &experiment.exemptions {
                let _ = writeln!(text, "{}", folded(&format!("Not judged: {exemption}")));
            }
            let _ = writeln!(text, "{}\n", folded(&outcome(&assessment.tally())));
        }
        if self.assessments.len() > 1 {
            let _ = writeln!(text, "{}", folded(&self.outcome()));
        }
        text
    }

    /// Tables and the outcome as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n", self.title);
        for notice in &self.notices {
            let _ = write!(text, "\n> {notice}\n");
        }
        for assessment in &self.assessments {
            let _ = write!(text, "\n## {}\n", page::title(assessment.experiment()));
            let constants = assessment.constants();
            if !constants.is_empty() {
                let _ = write!(text, "\nEverywhere: {constants}\n");
            }
            for table in tables(assessment, MARKDOWN_WIDTH) {
                let _ = write!(text, "\n{}", table.markdown());
            }
            for spread in spreads(assessment) {
                let _ = write!(text, "\n{}", spread.markdown());
            }
            for exemption in &assessment.experiment().exemptions {
                let _ = write!(text, "\nNot judged: {exemption}\n");
            }
            let _ = write!(text, "\n{}\n", outcome(&assessment.tally()));
        }
        text
    }

    /// Cells, judgements and the summary as one JSON object.
    ///
    /// # Errors
    /// Never, for what a file can hold.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        #[derive(Serialize)]
        struct One<'a> {
            name: &'a str,
            title: &'a str,
            reference: Option<crate::Source>,
            is_met: bool,
            tally: Tally,
            cells: &'a [crate::Cell],
        }
        #[derive(Serialize)]
        struct All<'a> {
            schema: u32,
            title: &'a str,
            is_met: bool,
            summary: Summary,
            notices: &'a [String],
            experiments: Vec<One<'a>>,
        }
        let one = |assessment| {
            let assessment: &Assessment = assessment;
            One {
                name: &assessment.experiment().name,
                title: page::title(assessment.experiment()),
                reference: assessment.reference(),
                is_met: assessment.is_met(),
                tally: assessment.tally(),
                cells: assessment.cells(),
            }
        };
        let summary = self.summary();
        let all = All {
            schema: SCHEMA,
            title: &self.title,
            is_met: summary.is_met(),
            summary,
            notices: &self.notices,
            experiments: self.assessments.iter().map(one).collect(),
        };
        Ok(serde_json::to_string_pretty(&all)? + "\n")
    }

    /// Writes `NAME.csv` for each experiment into `folder`, which is made when it is missing.
    /// Returns the files.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write_csv(&self, folder: &Path) -> Result<Vec<PathBuf>, ReportError> {
        make(folder)?;
        let mut files = Vec::new();
        for assessment in &self.assessments {
            let path = folder.join(format!("{}.csv", assessment.experiment().name));
            write(&path, &assessment.csv())?;
            files.push(path);
        }
        Ok(files)
    }

    /// Writes each plot into `folder`, which is made when it is missing, named after its experiment
    /// and title: `NAME-goodput-10-km.svg`. Returns the files.
    ///
    /// # Errors
    /// A plot cannot be drawn, or a file cannot be written.
    pub fn write_svg(&self, folder: &Path) -> Result<Vec<PathBuf>, ReportError> {
        make(folder)?;
        let mut files = Vec::new();
        for assessment in &self.assessments {
            let plots = figures(assessment).into_iter().map(Picture::Plot);
            for picture in plots.chain(maps(assessment)).chain(distributions(assessment)) {
                let name = format!("{}-{}", assessment.experiment().name, slug(picture.title()));
                let numbered = (2..).map(|number| format!("{name}-{number}"));
                let mut paths = std::iter::once(name.clone())
                    .chain(numbered)
                    .map(|name| folder.join(name + ".svg"));
                // Titles that differ in no letter or digit.
                let path = paths.find(|path| !files.contains(path)).unwrap_or_default();
                write(&path, &picture.with_note(assessment.origin()).svg()?)?;
                files.push(path);
            }
        }
        Ok(files)
    }
}

/// `text` in lines of a terminal, the second and further ones indented.
fn folded(text: &str) -> String {
    let (mut folded, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        let len = word.chars().count();
        if width > 0 && width + 1 + len > TEXT_WIDTH {
            folded.push_str("\n ");
            width = 1;
        }
        if width > 0 {
            folded.push(' ');
            width += 1;
        }
        folded.push_str(word);
        width += len;
    }
    folded
}

/// Letters and digits of `title` for a file's name, anything else as single hyphens.
fn slug(title: &str) -> String {
    const LONGEST: usize = 80;
    let lower = title.to_ascii_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut slug = words.collect::<Vec<_>>().join("-");
    slug.truncate(LONGEST);
    if slug.is_empty() { "plot".to_owned() } else { slug }
}

fn make(folder: &Path) -> Result<(), ReportError> {
    std::fs::create_dir_all(folder)
        .map_err(|error| ReportError::Io { path: folder.to_owned(), error })
}

fn write(path: &Path, text: &str) -> Result<(), ReportError> {
    std::fs::write(path, text).map_err(|error| ReportError::Io { path: path.to_owned(), error })
}

/// What `basis` expects, in words: none where it expects nothing.
pub(crate) fn clause(tally: &Tally, basis: Basis) -> Option<String> {
    let Counts { within, fitted, beyond, missing } = tally.of(basis);
    if within + fitted + beyond + missing == 0 {
        return None;
    }
    // Where a constant was fitted agreement proves nothing: such figures are beside the others, not
    // among them.
    let judged = within + beyond + missing;
    let mut text = match basis {
        Basis::Published => format!("{within} of {judged} published figures reproduced"),
        Basis::Theory => format!("{within} of {judged} figures as theory has them"),
        Basis::Own => format!("{within} of {judged} own goals met"),
    };
    let parts = [
        (fitted, "more where a constant was fitted"),
        (beyond, "beyond tolerance"),
        (missing, "missing"),
    ];
    for (count, what) in parts.into_iter().filter(|(count, _)| *count > 0) {
        let _ = write!(text, ", {count} {what}");
    }
    Some(text)
}

/// A tally in a sentence.
pub(crate) fn outcome(tally: &Tally) -> String {
    let mut clauses: Vec<String> =
        Basis::ALL.into_iter().filter_map(|basis| clause(tally, basis)).collect();
    if clauses.is_empty() {
        clauses.push(match tally.unjudged {
            0 => "nothing to compare".to_owned(),
            1 => "1 figure, without an expected value".to_owned(),
            count => format!("{count} figures, without expected values"),
        });
    }
    if tally.failed > 0 {
        clauses.push(format!("{} without a figure because a run ended in an error", tally.failed));
    }
    clauses.join("; ")
}

#[cfg(test)]
mod tests;
