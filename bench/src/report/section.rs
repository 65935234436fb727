//! One experiment.

use super::page::{badge, escaped, figure, title};
use super::{ReportError, outcome};
use crate::assess::{Assessment, Runs, Verdict};
use crate::distributions::{Picture, distributions, maps};
use crate::experiment::Document;
use crate::figures::figures;
use crate::quantity::{Quantity, percent};
use crate::spread::{HEADS, Spread, spreads};
use crate::table::{Table, TableCell, TableColumn, tables};
use std::collections::BTreeSet;
use std::fmt::Write;

/// What fits side by side on a page, in characters of a table.
const TABLE_WIDTH: usize = 150;
/// Names of rows that are longer are broken into lines.
const LONG_LABEL: usize = 28;
/// More notes than this stay with their cells alone.
const NOTES_MAX: usize = 12;
/// More command lines than this are counted.
const COMMANDS_MAX: usize = 4;

pub(super) fn render(
    number: usize,
    assessment: &Assessment,
    html: &mut String,
) -> Result<(), ReportError> {
    let experiment = assessment.experiment();
    let (class, symbol, words) = badge(assessment);
    // Writing to a String cannot fail.
    let _ = writeln!(
        html,
        "<section class=\"experiment\" id=\"e{number}\">\n\
         <h2>{} <span class=\"badge {class}\">{symbol} {words}</span></h2>",
        escaped(title(experiment))
    );
    let figures: Vec<Picture> = figures(assessment).into_iter().map(Picture::Plot).collect();
    // One plot stands beside the text, several below it.
    let single = if figures.len() == 1 { " single" } else { "" };
    let _ = writeln!(html, "<div class=\"overview{single}\">\n<div>");
    if let Some(document) = &experiment.document {
        let _ = writeln!(html, "<p class=\"source\">Published in {}</p>", cited(document));
    }
    for paragraph in experiment.about.split("\n\n").filter(|text| !text.trim().is_empty()) {
        let _ = writeln!(html, "<p>{}</p>", escaped(paragraph));
    }
    let constants = assessment.constants();
    if !constants.is_empty() {
        let _ = writeln!(html, "<p class=\"everywhere\">Everywhere: {}.</p>", escaped(&constants));
    }
    expected(assessment, html);
    html.push_str("</div>\n");
    plots(&figures, html)?;
    html.push_str("</div>\n<div class=\"figures\">\n");
    for table in tables(assessment, TABLE_WIDTH) {
        one_table(&table, html);
    }
    html.push_str("</div>\n");
    pictures("Over two parameters", &maps(assessment), html)?;
    spread(assessment, html)?;
    let timelines = assessment.timelines().iter();
    let timelines = timelines.flat_map(|one| one.pictures(|at| assessment.layout().place_name(at)));
    pictures("Over time", &timelines.collect::<Vec<_>>(), html)?;
    for remark in &experiment.remarks {
        let _ = writeln!(html, "<p class=\"remark\">{}</p>", escaped(remark));
    }
    assumptions(assessment, html);
    provenance(assessment, html);
    html.push_str("</section>\n");
    Ok(())
}

fn cited(document: &Document) -> String {
    match document.place.as_str() {
        "" => escaped(&document.title),
        place => format!("{}, {}", escaped(&document.title), escaped(place)),
    }
}

fn expected(assessment: &Assessment, html: &mut String) {
    let expectations = &assessment.experiment().expectations;
    if expectations.is_empty() {
        return;
    }
    let _ = write!(html, "<p><b>Outcome:</b> {}", escaped(&outcome(&assessment.tally())));
    if let Some((cell, source, deviation)) = assessment.worst() {
        let _ = write!(
            html,
            "; farthest off is {} {} at {}",
            escaped(&percent(deviation)),
            source.name(),
            escaped(&assessment.layout().place_name(&cell.point))
        );
    }
    html.push_str(".</p>\n<p><b>Expected:</b></p>\n<ul class=\"expected\">\n");
    for expectation in expectations {
        let (basis, text) = (expectation.basis.name(), escaped(&expectation.to_string()));
        let _ = writeln!(html, "<li><b>{basis}:</b> {text}</li>");
    }
    for exemption in &assessment.experiment().exemptions {
        let _ = writeln!(html, "<li><b>not judged:</b> {}</li>", escaped(&exemption.to_string()));
    }
    html.push_str("</ul>\n");
}

/// Pictures below a heading, if there are any.
fn pictures(heading: &str, all: &[Picture], html: &mut String) -> Result<(), ReportError> {
    if !all.is_empty() {
        let _ = writeln!(html, "<h3>{heading}</h3>");
    }
    plots(all, html)
}

/// Tables and pictures of repeated runs.
fn spread(assessment: &Assessment, html: &mut String) -> Result<(), ReportError> {
    let spreads = spreads(assessment);
    if spreads.is_empty() {
        return Ok(());
    }
    html.push_str("<h3>Spread of repeated runs</h3>\n<div class=\"figures\">\n");
    for spread in &spreads {
        spread_table(spread, html);
    }
    html.push_str("</div>\n");
    plots(&distributions(assessment), html)
}

fn spread_table(spread: &Spread, html: &mut String) {
    let _ = write!(
        html,
        "<div>\n<table class=\"cells spread\">\n<caption>{}</caption>\n<thead><tr><th></th>",
        escaped(&spread.title)
    );
    for head in HEADS {
        let _ = write!(html, "<th>{head}</th>");
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in &spread.rows {
        let long = if row.point.chars().count() > LONG_LABEL { " class=\"long\"" } else { "" };
        let few = if row.is_few { " class=\"few\"" } else { "" };
        let _ = write!(html, "<tr{few}><th{long}>{}</th>", escaped(&row.point));
        for figure in &row.figures {
            let _ = write!(html, "<td>{figure}</td>");
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table>\n");
    let remarks = spread.remarks();
    if !remarks.is_empty() {
        html.push_str("<ul class=\"below\">\n");
        for remark in remarks {
            let _ = writeln!(html, "<li>{remark}</li>");
        }
        html.push_str("</ul>\n");
    }
    html.push_str("</div>\n");
}

fn plots(figures: &[Picture], html: &mut String) -> Result<(), ReportError> {
    if figures.is_empty() {
        return Ok(());
    }
    html.push_str("<div class=\"plots\">\n");
    for picture in figures {
        let svg = picture.svg()?;
        let _ = writeln!(html, "{}", figure(&svg, &format!("Plot: {}", picture.title())));
    }
    html.push_str("</div>\n");
    Ok(())
}

/// Notes of a table, in the order in which they come.
fn notes(table: &Table) -> Vec<&str> {
    let mut notes: Vec<&str> = Vec::new();
    for note in table
        .rows
        .iter()
        .flat_map(|row| row.cells.iter().flatten())
        .filter_map(|c| c.note.as_deref())
    {
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes
}

fn one_table(table: &Table, html: &mut String) {
    let notes = notes(table);
    let shown: &[&str] = if notes.len() <= NOTES_MAX { &notes } else { &[] };
    let _ = writeln!(
        html,
        "<div>\n<table class=\"cells\">\n<caption>{}</caption>\n<thead>",
        escaped(&table.title)
    );
    let groups = table.groups();
    let columns = |column: &TableColumn| if column.is_reference { 1 } else { 2 };
    if groups.iter().any(|(name, _)| !name.is_empty()) {
        html.push_str("<tr><th class=\"group\"></th>");
        let mut first = 0;
        for (name, count) in groups {
            let span: usize = table.columns[first..first + count].iter().map(columns).sum();
            let _ =
                write!(html, "<th class=\"group first\" colspan=\"{span}\">{}</th>", escaped(name));
            first += count;
        }
        html.push_str("</tr>\n");
    }
    let _ = write!(html, "<tr><th>{}</th>", escaped(&table.rows_are));
    for (i, column) in table.columns.iter().enumerate() {
        let span = columns(column);
        let _ = write!(
            html,
            "<th class=\"{}\" colspan=\"{span}\">{}</th>",
            first(table, i),
            column.source.name()
        );
    }
    html.push_str("</tr>\n</thead>\n<tbody>\n");
    for row in &table.rows {
        let long = if row.label.chars().count() > LONG_LABEL { " class=\"long\"" } else { "" };
        let _ = write!(html, "<tr><th{long}>{}</th>", escaped(&row.label));
        for (i, (column, cell)) in table.columns.iter().zip(&row.cells).enumerate() {
            one_cell(column, cell.as_ref(), first(table, i), shown, html);
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table>\n");
    below(table, shown, html);
    html.push_str("</div>\n");
}

/// Class of the first column of a group, which stands apart.
fn first(table: &Table, column: usize) -> &'static str {
    match column.checked_sub(1).map(|before| &table.columns[before].group) {
        Some(before) if *before == table.columns[column].group => "",
        _ => "first",
    }
}

fn one_cell(
    column: &TableColumn,
    cell: Option<&TableCell>,
    first: &str,
    notes: &[&str],
    html: &mut String,
) {
    let Some(cell) = cell else {
        let span = if column.is_reference { 1 } else { 2 };
        let _ = write!(html, "<td class=\"{first}\" colspan=\"{span}\"></td>");
        return;
    };
    let reference = if column.is_reference { " reference" } else { "" };
    let hint =
        cell.note.as_ref().map_or(String::new(), |note| format!(" title=\"{}\"", escaped(note)));
    let _ = write!(html, "<td class=\"{first}{reference}\"{hint}>{}", escaped(&cell.text));
    if let Some(number) = cell.note.as_ref().and_then(|note| notes.iter().position(|n| n == note)) {
        let _ = write!(html, "<sup>{}</sup>", number + 1);
    }
    let class = match cell.verdict {
        Some(Verdict::Within) if !cell.fitted => "good",
        Some(Verdict::Beyond | Verdict::Missing) => "bad",
        Some(Verdict::Unjudged) => "",
        None if cell.failed => "bad",
        Some(Verdict::Within) | None => "fit",
    };
    let symbol = cell.symbol();
    if column.is_reference {
        let _ = if symbol.is_empty() {
            Ok(())
        } else {
            write!(html, " <span class=\"{class}\">{symbol}</span>")
        };
        html.push_str("</td>");
        return;
    }
    let _ = write!(
        html,
        "</td><td class=\"d {class}\">{}<span class=\"symbol\">{symbol}</span></td>",
        escaped(&cell.deviation_text())
    );
}

fn below(table: &Table, notes: &[&str], html: &mut String) {
    let runs =
        table.rows.iter().flat_map(|row| row.cells.iter().flatten()).map(|cell| cell.runs).max();
    let runs = runs.filter(|runs| *runs > 1);
    if notes.is_empty() && runs.is_none() {
        return;
    }
    html.push_str("<ul class=\"below\">\n");
    if let Some(runs) = runs {
        let _ = writeln!(html, "<li>Means of up to {runs} runs; their spread is shown below.</li>");
    }
    for (i, note) in notes.iter().enumerate() {
        let _ = writeln!(html, "<li><sup>{}</sup> {}</li>", i + 1, escaped(note));
    }
    html.push_str("</ul>\n");
}

fn assumptions(assessment: &Assessment, html: &mut String) {
    let assumptions = &assessment.experiment().assumptions;
    if assumptions.is_empty() {
        return;
    }
    html.push_str(
        "<div class=\"together\"><h3>What was assumed</h3>\n<table class=\"facts\">\n\
         <thead><tr><th>What</th><th>Value</th>\
         <th>Source</th><th>Fitted on</th></tr></thead>\n<tbody>\n",
    );
    for assumption in assumptions {
        let fitted = assumption.fitted_on.as_deref().map_or("–".to_owned(), |cells| {
            format!("<span class=\"fit\">◆</span> {}", escaped(cells))
        });
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td class=\"value\">{}</td><td data-name=\"Source\">{}</td>\
             <td data-name=\"Fitted on\">{fitted}</td></tr>",
            escaped(&assumption.what),
            escaped(&assumption.value),
            escaped(&assumption.source)
        );
    }
    html.push_str("</tbody>\n</table></div>\n");
}

fn provenance(assessment: &Assessment, html: &mut String) {
    let runs: Vec<&Runs> =
        assessment.runs().iter().filter(|runs| !runs.source.is_given()).collect();
    if runs.is_empty() {
        return;
    }
    html.push_str(
        "<div class=\"together\"><h3>Provenance</h3>\n<table class=\"facts\">\n\
         <thead><tr><th>Source</th><th>Results</th><th>By</th>\
         <th>Seeds</th><th>Time</th><th>Command</th></tr></thead>\n<tbody>\n",
    );
    for runs in runs {
        let by = runs.first.as_ref().map_or("not said".to_owned(), |first| {
            let threads = if first.threads == 1 { "thread" } else { "threads" };
            format!("longhaul {} on {}, {} {threads}", first.longhaul, first.host, first.threads)
        });
        let time = Quantity::of("wall_s").humanised(runs.wall_s);
        let time = if runs.latest.is_empty() {
            String::new()
        } else {
            format!("{time}, until {}", runs.latest)
        };
        let _ = write!(
            html,
            "<tr><td class=\"whole\">{}</td><td class=\"whole\" data-name=\"Results\">{}</td>\
             <td data-name=\"By\">{}</td><td class=\"whole\" data-name=\"Seeds\">{}</td>\
             <td data-name=\"Time\">{}</td><td>",
            runs.source.name(),
            runs.records,
            escaped(&by),
            escaped(&seeds(&runs.seeds)),
            words(&time)
        );
        for command in runs.commands.iter().filter(|command| !command.is_empty()).take(COMMANDS_MAX)
        {
            let _ = write!(html, "<code>{}</code>", words(command));
        }
        if runs.commands.len() > COMMANDS_MAX {
            let _ = write!(html, "and {} more in the data", runs.commands.len() - COMMANDS_MAX);
        }
        html.push_str("</td></tr>\n");
    }
    html.push_str("</tbody>\n</table></div>\n");
}

/// `text` with each word marked, so that a line does not end at a hyphen in a date or an option.
fn words(text: &str) -> String {
    let words =
        text.split(' ').map(|word| format!("<span class=\"word\">{}</span>", escaped(word)));
    words.collect::<Vec<_>>().join(" ")
}

fn seeds(seeds: &BTreeSet<u64>) -> String {
    match (seeds.first(), seeds.last()) {
        (Some(first), Some(last)) if seeds.len() > 3 => {
            format!("{} from {first} to {last}", seeds.len())
        }
        (Some(_), _) => seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
        _ => "none".to_owned(),
    }
}
