//! The page around the sections: head, summary, contents.

use super::{Report, ReportError, outcome, section};
use crate::assess::{Assessment, Counts};
use crate::expectation::Basis;
use crate::experiment::Experiment;
use crate::plot::COLOURS;
use crate::quantity::percent;
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");

/// Colours of series on a dark page, in the order of [`COLOURS`].
const DARK_COLOURS: [&str; 7] =
    ["#5cb3ee", "#ff8f45", "#3fcf9f", "#e592be", "#eeb740", "#8fd0fa", "#b5b5b5"];

/// `text` as it may stand in an element or a quoted attribute.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Control characters are no part of HTML.
            c if c.is_control() && c != '\n' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

pub(super) fn title(experiment: &Experiment) -> &str {
    if experiment.title.is_empty() { &experiment.name } else { &experiment.title }
}

/// What stands for an outcome: class of style, symbol, words.
pub(super) fn badge(assessment: &Assessment) -> (&'static str, &'static str, &'static str) {
    let tally = assessment.tally();
    match (assessment.is_met(), tally.judged()) {
        (false, _) if tally.all.beyond == 0 && tally.all.missing > 0 => ("bad", "✗", "incomplete"),
        (false, 0) => ("bad", "✗", "not judged"),
        (false, _) => ("bad", "✗", "off"),
        (true, 0) => ("none", "–", "nothing expected"),
        (true, _) => ("good", "✓", "as expected"),
    }
}

pub(super) fn render(report: &Report) -> Result<String, ReportError> {
    let mut html = String::new();
    let title = escaped(&report.title);
    // Writing to a String cannot fail.
    let _ = write!(
        html,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n<style>\n{STYLE}{}</style>\n\
         </head>\n\
         <body>\n<main>\n<header>\n<h1>{title}</h1>\n<p class=\"origin\">{}</p>\n</header>\n",
        dark_plots(),
        escaped(&origin(report)),
    );
    for notice in &report.notices {
        let _ =
            writeln!(html, "<p class=\"notice\"><strong>Note.</strong> {}</p>", escaped(notice));
    }
    if !report.assessments.is_empty() || report.maps.is_empty() {
        summary(report, &mut html);
        contents(report, &mut html);
        legend(&mut html);
    }
    for (i, assessment) in report.assessments.iter().enumerate() {
        section::render(i + 1, assessment, &mut html)?;
    }
    for map in &report.maps {
        let _ = writeln!(html, "{}", figure(&map.svg()?, &map.title));
    }
    html.push_str("</main>\n</body>\n</html>\n");
    Ok(html)
}

/// A plot with its label, for a page.
pub(super) fn figure(svg: &str, label: &str) -> String {
    let label = format!("<svg role=\"img\" aria-label=\"{}\" ", escaped(label));
    format!("<figure>{}</figure>", svg.trim().replacen("<svg ", &label, 1))
}

/// Which program and when, from the records alone.
fn origin(report: &Report) -> String {
    if report.assessments.is_empty() && !report.maps.is_empty() {
        return String::new();
    }
    let runs = || report.assessments.iter().flat_map(Assessment::runs);
    let records: usize = runs().map(|runs| runs.records).sum();
    let latest = runs().map(|runs| runs.latest.as_str()).max().unwrap_or_default();
    let mut versions: Vec<&str> =
        runs().filter_map(|r| Some(r.first.as_ref()?.longhaul.as_str())).collect();
    versions.sort_unstable();
    versions.dedup();
    let mut text = format!("{records} results in {} experiments", report.assessments.len());
    if !versions.is_empty() {
        let _ = write!(text, " · longhaul {}", versions.join(", "));
    }
    if !latest.is_empty() {
        let _ = write!(text, " · latest run {latest}");
    }
    text
}

fn summary(report: &Report, html: &mut String) {
    let tally = report.summary().tally;
    let Counts { fitted, beyond, missing, .. } = tally.all;
    let _ = write!(html, "<section class=\"summary\">\n<p class=\"headline\">");
    let class = if report.summary().is_met() { "good" } else { "bad" };
    let published = tally.published;
    if published.judged() > published.fitted {
        let _ = write!(
            html,
            "<span class=\"figure {class}\">{} of {}</span> published figures are reproduced",
            published.within,
            published.judged() - published.fitted
        );
    } else {
        html.push_str(&escaped(&outcome(&tally)));
    }
    html.push_str("</p>\n<ul class=\"tiles\">\n");
    let tiles = [
        ("good", "✓", published.within, "published figures reproduced, nothing fitted there"),
        ("good", "✓ᵗ", tally.theory.within, "as theory has them"),
        ("good", "✓ᵒ", tally.own.within, "goals of our own met"),
        ("fit", "◆", fitted, "within tolerance where a constant was fitted"),
        ("bad", "✗", beyond, "beyond tolerance"),
        ("bad", "○", missing, "expected and missing"),
        ("bad", "!", tally.failed, "without a figure because a run ended in an error"),
        ("none", "–", tally.unjudged, "shown for comparison, nothing expected"),
    ];
    for (class, symbol, count, what) in tiles {
        let class = if count == 0 { "none" } else { class };
        let _ = writeln!(
            html,
            "<li class=\"{class}\"><span class=\"symbol\">{symbol}</span><b>{count}</b> {what}</li>"
        );
    }
    html.push_str("</ul>\n</section>\n");
}

fn contents(report: &Report, html: &mut String) {
    html.push_str(
        "<nav>\n<h2>Contents and outcome</h2>\n<table class=\"contents\">\n\
         <thead><tr><th>Experiment</th>\
         <th>Published in</th><th class=\"n\">reproduced</th><th class=\"n\">theory</th>\
         <th class=\"n\">own</th>\
         <th class=\"n\">◆</th><th class=\"n\">✗</th><th class=\"n\">missing</th>\
         <th class=\"n\">farthest off</th><th>Outcome</th></tr></thead>\n<tbody>\n",
    );
    for (i, assessment) in report.assessments.iter().enumerate() {
        let experiment = assessment.experiment();
        let tally = assessment.tally();
        let met = |basis| match tally.of(basis) {
            counts if counts.judged() == counts.fitted => "–".to_owned(),
            counts => format!("{} of {}", counts.within, counts.judged() - counts.fitted),
        };
        let (class, symbol, words) = badge(assessment);
        let document = experiment.document.as_ref();
        let place = document.map_or("–".to_owned(), |document| {
            let parts = [document.title.as_str(), document.place.as_str()];
            parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
        });
        let worst =
            assessment.worst().map_or("–".to_owned(), |(.., deviation)| percent(deviation));
        let _ = writeln!(
            html,
            "<tr><td><a href=\"#e{}\">{}</a></td><td class=\"doc\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td>\
             <span class=\"badge {class}\">{symbol} {words}</span></td></tr>",
            i + 1,
            escaped(title(experiment)),
            escaped(&place),
            met(Basis::Published),
            met(Basis::Theory),
            met(Basis::Own),
            tally.all.fitted,
            tally.all.beyond,
            tally.all.missing,
            worst
        );
    }
    html.push_str("</tbody>\n</table>\n</nav>\n");
}

fn legend(html: &mut String) {
    html.push_str(
        "<section class=\"legend\">\n<h2>How to read this</h2>\n<dl>\n\
         <dt>published</dt><dd>measured or printed by others, as typed from their document</dd>\n\
         <dt>theory</dt><dd>a formula gives it</dd>\n\
         <dt>predicted</dt><dd>the planner's formulas</dd>\n\
         <dt>simulated</dt><dd>the protocol code itself in virtual time</dd>\n\
         <dt>measured</dt><dd>in real time, on the machine named under provenance</dd>\n\
         <dt>+0.31 %</dt><dd>distance from the reference, which is the first column of each \
         group</dd>\n\
         <dt><span class=\"good\">✓</span> <span class=\"bad\">✗</span></dt>\
         <dd>within or beyond what a document leads to expect; without a sign, nothing was \
         expected</dd>\n\
         <dt>✓ᵗ ✓ᵒ</dt><dd>as theory has it; a goal of our own. Neither counts as reproduced</dd>\n\
         <dt>failed</dt><dd>the run ended in an error; missing, where something was expected</dd>\n\
         <dt><span class=\"fit\">◆</span> <span class=\"fit\">◇</span></dt>\
         <dd>a constant was fitted on this cell, so agreement here proves nothing (◆ within \
         tolerance, ◇ not judged)</dd>\n\
         <dt>†</dt><dd>the document itself seems wrong here; nothing is judged by it</dd>\n</dl>\n\
         </section>\n",
    );
}

/// Plots have their colours in attributes; on a dark screen these stand for others.
fn dark_plots() -> String {
    let mut css = "@media screen and (prefers-color-scheme: dark) {\n".to_owned();
    let mut swap = |from: &str, to: &str| {
        let _ = writeln!(
            css,
            "svg [fill=\"{from}\"] {{ fill: {to} }} svg [stroke=\"{from}\"] {{ stroke: {to} }}"
        );
    };
    for ((red, green, blue), dark) in COLOURS.iter().zip(DARK_COLOURS) {
        swap(&format!("#{red:02X}{green:02X}{blue:02X}"), dark);
    }
    swap("#222222", "var(--ink)");
    swap("#666666", "var(--faint)");
    swap("#DDDDDD", "var(--rule)");
    swap("#FFFFFF", "var(--paper)");
    css + "}\n"
}
