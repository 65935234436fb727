//! Published figures beside measured ones.

use crate::labs::Table;
use crate::output::table::blocks;
use crate::output::wrapped;
use crate::problem::Problem;
use longhaul_bench::{PublishedCell, Quantity, Record};
use longhaul_boxes::figures::count;
use longhaul_campaign::{Campaign, Compared, Point, Site, Statistic};
use std::collections::BTreeSet;

/// The published figures of a campaign, with those of `records`.
pub fn compare(campaign: &Campaign, records: &[Record]) -> Result<Vec<Compared>, Problem> {
    let mut all = Vec::new();
    for published in &campaign.published {
        let table = Table::named(&published.table)?;
        all.extend(published.compare(table.cells(), records));
    }
    Ok(all)
}

/// The published means and medians of single points, as a report shows them: it averages the runs
/// of a point.
pub fn cells(campaign: &Campaign, points: &[Point]) -> Result<Vec<PublishedCell>, Problem> {
    let mut cells = Vec::new();
    for one in compare(campaign, &[])? {
        let is_average = matches!(one.statistic, Statistic::Mean | Statistic::Median);
        let is_at = |point: &&Point| {
            one.point.iter().all(|(key, value)| point.place.get(key) == Some(value))
        };
        let mut found = points.iter().filter(is_at);
        if let (true, Some(point), None) = (is_average, found.next(), found.next()) {
            cells.push(PublishedCell::new(point.place.clone(), &one.value, one.published));
        }
    }
    Ok(cells)
}

/// A table of those that were measured, and the number of the others.
pub fn text(campaign: &Campaign, compared: &[Compared], width: usize) -> String {
    let document = campaign.experiment.document.clone().unwrap_or_default();
    let mut text = format!("Published in {}, {}\n", document.title, document.place);
    if document.title.is_empty() {
        "Published\n".clone_into(&mut text);
    }
    let there: Vec<&Compared> = compared.iter().filter(|one| one.measured.is_some()).collect();
    if !there.is_empty() {
        text += &table(&there, width);
    }
    if campaign.site == Site::Lab {
        let line = "The measured figures are those of a lab on this machine, whose rate and \
                    processors are not the document's: compare how figures change, not their size.";
        text += &wrapped(line, width);
    }
    let missing = compared.len() - there.len();
    if missing > 0 {
        let line = format!("{} without runs here", count(missing as u64, "published figure"));
        text += &wrapped(&line, width);
    }
    text
}

fn table(compared: &[&Compared], width: usize) -> String {
    let keys: BTreeSet<&str> =
        compared.iter().flat_map(|one| one.point.iter().map(|(key, _)| key)).collect();
    let heads = keys.iter().map(|key| Quantity::of(key).label().to_owned());
    let figures = ["value", "of runs", "published", "measured", "n", "ratio"].map(str::to_owned);
    let mut lines = vec![heads.chain(figures).collect::<Vec<String>>()];
    for one in compared {
        let quantity = Quantity::of(&one.value);
        let parameter =
            |key: &&str| one.point.get(key).map_or_else(String::new, |value| value.humanised(key));
        let measured = one.measured.unwrap_or_default();
        let figures = [
            quantity.label().to_owned(),
            one.statistic.name().to_owned(),
            quantity.humanised(one.published),
            quantity.humanised(measured),
            one.n.to_string(),
            format!("{:.3}", measured / one.published),
        ];
        lines.push(keys.iter().map(parameter).chain(figures).collect());
    }
    blocks(&lines, keys.len() + 2, width)
}
