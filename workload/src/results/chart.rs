//! Charts as SVG: lines with confidence intervals over linear or logarithmic axes, and maps of coloured tiles. The
//! plots of runs and the figures of the testbed use them.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::combinators::LogCoord;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

pub use plotters::prelude::SeriesLabelPosition as Corner;

/// Size of a chart in pixels.
pub const SIZE: (u32, u32) = (900, 520);
/// Colours for colour-blind readers (Okabe and Ito, 2008), without the yellow.
pub const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
];
/// Colour of vertical marks.
const MARK: RGBColor = COLOURS[6];

/// Error of drawing a chart.
pub type ChartError = Box<dyn std::error::Error>;

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis<'a> {
    /// Quantity and unit.
    pub label: &'a str,
    /// True for a logarithmic scale, which has no points at or below 0.
    pub is_log: bool,
    /// Range; that of the points, with a margin, if `None`.
    pub range: Option<Range<f64>>,
}

impl<'a> Axis<'a> {
    /// Creates a linear axis with the range of the points.
    #[must_use]
    pub fn linear(label: &'a str) -> Self {
        Self { label, is_log: false, range: None }
    }

    /// Creates a logarithmic axis with the range of the points.
    #[must_use]
    pub fn log(label: &'a str) -> Self {
        Self { label, is_log: true, range: None }
    }

    /// Sets the range.
    #[must_use]
    pub fn over(self, range: Range<f64>) -> Self {
        Self { range: Some(range), ..self }
    }

    /// Returns true if the axis can show this value: a finite one, above 0 on a logarithmic scale.
    fn can_show(&self, value: f64) -> bool {
        value.is_finite() && (!self.is_log || value > 0.0)
    }

    /// Returns the scale over the axis's range, or over that of the values. `None` if there is neither.
    fn scale(&self, values: impl Iterator<Item = f64>) -> Option<Scale> {
        let bounds = values.fold(None, |bounds: Option<(f64, f64)>, value| {
            let (min, max) = bounds.unwrap_or((value, value));
            Some((min.min(value), max.max(value)))
        });
        // The upper margin of a logarithmic axis leaves room for the legend. A range of one value has a
        // margin of a tenth of it.
        let with_margin = |(min, max): (f64, f64)| match self.is_log {
            true => min / 1.4..max * 2.0,
            false => {
                let margin = if max > min { (max - min) * 0.05 } else { max.abs().max(1e-9) * 0.1 };
                min - margin..max + margin
            }
        };
        let range = match &self.range {
            Some(range) => range.clone(),
            None => with_margin(bounds?),
        };
        Some(match self.is_log {
            true => Scale::Log(range.log_scale().into()),
            false => Scale::Linear(range.into()),
        })
    }
}

/// Style of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Solid line.
    Solid,
    /// Dashed line.
    Dashed,
    /// One vertical line for each point, from the bottom.
    Impulses,
}

/// Point of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Position.
    pub at: (f64, f64),
    /// Half width of the confidence interval; no interval if it is not finite.
    pub half: f64,
    /// False for a point of an invalid run, which is hollow.
    pub valid: bool,
}

impl Point {
    /// Creates a valid point without an interval.
    #[must_use]
    pub fn new(x: f64, y: f64) -> Self {
        Self { at: (x, y), half: f64::NAN, valid: true }
    }
}

/// A line.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name in the legend; empty to leave it out.
    pub label: String,
    /// Points in order.
    pub points: Vec<Point>,
    /// Style.
    pub style: Style,
    /// Index of the colour.
    pub colour: usize,
    /// True to mark each point by a circle.
    pub has_circles: bool,
}

impl Line {
    /// Creates line number `colour` of a chart, without circles. Every second cycle of the colours is dashed.
    #[must_use]
    pub fn new(label: impl Into<String>, colour: usize, points: Vec<Point>) -> Self {
        let is_dashed = colour / COLOURS.len() % 2 == 1;
        let style = if is_dashed { Style::Dashed } else { Style::Solid };
        Self { label: label.into(), points, style, colour, has_circles: false }
    }

    /// Marks each point by a circle.
    #[must_use]
    pub fn with_circles(self) -> Self {
        Self { has_circles: true, ..self }
    }

    /// Sets the style.
    #[must_use]
    pub fn style(self, style: Style) -> Self {
        Self { style, ..self }
    }
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart<'a> {
    /// Title; empty for none.
    pub title: &'a str,
    /// Horizontal axis.
    pub x: Axis<'a>,
    /// Vertical axis.
    pub y: Axis<'a>,
    /// Lines. Points that an axis cannot show are left out.
    pub lines: Vec<Line>,
    /// Vertical marks with their texts.
    pub marks: Vec<(f64, String)>,
    /// Place of the legend.
    pub legend: Corner,
}

impl<'a> Chart<'a> {
    /// Creates a chart without title and marks, with the legend at the upper left.
    #[must_use]
    pub fn new(x: Axis<'a>, y: Axis<'a>, lines: Vec<Line>) -> Self {
        Self { title: "", x, y, lines, marks: Vec::new(), legend: Corner::UpperLeft }
    }

    /// Draws the chart as SVG.
    ///
    /// # Errors
    /// If the axes can show no point.
    pub fn svg(&self, size: (u32, u32)) -> Result<String, ChartError> {
        svg(std::slice::from_ref(self), size, 1)
    }

    /// Returns the points of a line that both axes can show.
    fn points(&self, line: &Line) -> Vec<Point> {
        let has_place = |point: &&Point| self.x.can_show(point.at.0) && self.y.can_show(point.at.1);
        line.points.iter().filter(has_place).copied().collect()
    }

    /// Draws axes, marks, lines with their intervals, and the legend.
    ///
    /// # Errors
    /// If the axes can show no point.
    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), ChartError> {
        let lines: Vec<_> = self.lines.iter().map(|line| (line, self.points(line))).collect();
        let points = || lines.iter().flat_map(|(_, points)| points);
        // The vertical range includes the ends of the confidence intervals.
        let ends = |point: &Point| {
            let half = if point.half.is_finite() { point.half } else { 0.0 };
            [point.at.1 - half, point.at.1, point.at.1 + half]
        };
        let ys = points().flat_map(ends).filter(|y| self.y.can_show(*y));
        let scales = self.x.scale(points().map(|point| point.at.0)).zip(self.y.scale(ys));
        let (x, y) = scales.ok_or("there is no finite value to plot")?;
        let (x_range, y_range) = (x.range(), y.range());
        let mut builder = ChartBuilder::on(area);
        builder.margin(16).x_label_area_size(46).y_label_area_size(72);
        if !self.title.is_empty() {
            builder.caption(self.title, ("sans-serif", 18));
        }
        let digits = |axis: &Axis<'_>, range| if axis.is_log { DIGITS } else { digits_over(range) };
        let (x_digits, y_digits) = (digits(&self.x, &x_range), digits(&self.y, &y_range));
        let mut chart = builder.build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .x_desc(self.x.label)
            .y_desc(self.y.label)
            .x_label_formatter(&|x| short(*x, x_digits))
            .y_label_formatter(&|y| short(*y, y_digits))
            .label_style(("sans-serif", 14))
            .axis_desc_style(("sans-serif", 15))
            .light_line_style(BLACK.mix(0.04))
            .bold_line_style(BLACK.mix(0.12))
            .draw()?;
        for (x, text) in self.marks.iter().filter(|(x, _)| x_range.contains(x)) {
            let line = MARK.mix(0.4).stroke_width(1);
            chart
                .draw_series([PathElement::new([(*x, y_range.start), (*x, y_range.end)], line)])?;
            let (place, font) = ((*x, y_range.end), ("sans-serif", 14));
            chart.draw_series([EmptyElement::at(place) + Text::new(text.clone(), (4, 2), font)])?;
        }
        for (line, points) in &lines {
            let colour = COLOURS[line.colour % COLOURS.len()];
            let stroke = colour.stroke_width(2);
            let path = points.iter().map(|point| point.at);
            let drawn = match line.style {
                Style::Solid => chart.draw_series(LineSeries::new(path, stroke))?,
                Style::Dashed => chart.draw_series(DashedLineSeries::new(path, 6, 4, stroke))?,
                Style::Impulses => chart.draw_series(path.map(|(x, y)| {
                    PathElement::new([(x, y_range.start), (x, y)], colour.stroke_width(1))
                }))?,
            };
            if !line.label.is_empty() {
                let legend = move |(x, y)| PathElement::new([(x, y), (x + 22, y)], stroke);
                drawn.label(&line.label).legend(legend);
            }
            for point in points.iter().filter(|point| point.half.is_finite()) {
                let ((x, y), half) = (point.at, point.half);
                // A logarithmic axis cannot show an end at or below 0. The bar then ends at the bottom.
                let low = if self.y.can_show(y - half) { y - half } else { y_range.start };
                let bar = PathElement::new([(x, low), (x, y + half)], colour.stroke_width(1));
                chart.draw_series([bar])?;
                let cap =
                    |y| EmptyElement::at((x, y)) + PathElement::new([(-4, 0), (4, 0)], colour);
                chart.draw_series([cap(low), cap(y + half)])?;
            }
            if line.has_circles {
                chart.draw_series(points.iter().map(|point| {
                    Circle::new(point.at, 4, if point.valid { colour.filled() } else { stroke })
                }))?;
            }
        }
        if self.lines.iter().any(|line| !line.label.is_empty()) {
            chart
                .configure_series_labels()
                .position(self.legend.clone())
                .background_style(WHITE.mix(0.9))
                .border_style(BLACK.mix(0.2))
                .label_font(("sans-serif", 14))
                .draw()?;
        }
        Ok(())
    }
}

/// Draws charts into one SVG of `size` pixels in all, as a grid with this number of columns, at least 1.
///
/// # Errors
/// If the axes of a chart can show no point.
pub fn svg(charts: &[Chart<'_>], size: (u32, u32), columns: usize) -> Result<String, ChartError> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE)?;
        let areas = root.split_evenly((charts.len().div_ceil(columns.max(1)), columns));
        for (chart, area) in charts.iter().zip(&areas) {
            chart.draw(area)?;
        }
        root.present()?;
    }
    Ok(text)
}

/// Map of coloured tiles, such as the best policy for each delay and load. A tile may be missing.
#[derive(Clone, Debug)]
pub struct TileMap {
    /// Title.
    pub title: String,
    /// Heading of each column.
    pub columns: Vec<String>,
    /// Heading and tiles of each row.
    pub rows: Vec<(String, Vec<Option<Tile>>)>,
}

/// Tile of a map: index of its colour in `Palette99`, and two lines of text.
pub type Tile = (usize, [String; 2]);

/// Width and height of a tile in pixels.
const TILE_SIZE: (i32, i32) = (88, 34);
/// Pixels left of the tiles, for the headings of rows.
const TILES_LEFT: i32 = 60;
/// Pixels above the tiles, for the title and the headings of columns.
const TILES_TOP: i32 = 64;

/// Draws maps of one size below each other.
///
/// # Errors
/// If there is none, or they cannot be drawn.
pub fn tile_maps(maps: &[TileMap]) -> Result<String, ChartError> {
    let ((width, height), Some(first)) = (TILE_SIZE, maps.first()) else {
        return Err("no map".into());
    };
    // Height of one map, and width of all.
    let panel = TILES_TOP + height * first.rows.len() as i32;
    let right = TILES_LEFT + width * first.columns.len() as i32 + 12;
    let mut text = String::new();
    {
        let size = (right as u32, (panel * maps.len() as i32 + 24) as u32);
        let root = SVGBackend::with_string(&mut text, size).into_drawing_area();
        root.fill(&WHITE)?;
        let label = |text: &str, x: i32, y: i32, size: i32| {
            root.draw(&Text::new(text.to_owned(), (x, y), ("sans-serif", size)))
        };
        for (top, map) in (0..).step_by(panel as usize).zip(maps) {
            label(&map.title, TILES_LEFT, top + 6, 18)?;
            let x_of = |column: usize| TILES_LEFT + width * column as i32;
            for (column, heading) in map.columns.iter().enumerate() {
                label(heading, x_of(column), top + TILES_TOP - 18, 12)?;
            }
            for (y, (heading, tiles)) in (top + TILES_TOP..).step_by(height as usize).zip(&map.rows)
            {
                label(heading, 8, y + 10, 13)?;
                for (column, tile) in tiles.iter().enumerate() {
                    let (x, Some((colour, [first, second]))) = (x_of(column), tile) else {
                        continue;
                    };
                    let corners = [(x, y), (x + width - 2, y + height - 2)];
                    let fill = Palette99::pick(*colour).mix(0.4).filled();
                    root.draw(&Rectangle::new(corners, fill))?;
                    label(first, x + 3, y + 4, 11)?;
                    label(second, x + 3, y + 18, 11)?;
                }
            }
        }
        root.present()?;
    }
    Ok(text)
}

/// Scale of an axis. Its methods are those of the chosen scale of the plotting library.
enum Scale {
    Linear(RangedCoordf64),
    Log(LogCoord<f64>),
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        match self {
            Self::Linear(scale) => scale.map(value, limit),
            Self::Log(scale) => scale.map(value, limit),
        }
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match self {
            Self::Linear(scale) => scale.key_points(hint),
            Self::Log(scale) => scale.key_points(hint),
        }
    }

    fn range(&self) -> Range<f64> {
        match self {
            Self::Linear(scale) => scale.range(),
            Self::Log(scale) => scale.range(),
        }
    }
}

impl ValueFormatter<f64> for Scale {
    fn format(value: &f64) -> String {
        short(*value, DIGITS)
    }
}

/// Usual number of significant digits of a label.
const DIGITS: i32 = 4;

/// Returns the number of significant digits that distinguish the labels of a linear axis. A range that is narrow beside
/// its values needs more than the usual ones.
fn digits_over(range: &Range<f64>) -> i32 {
    let ratio = range.start.abs().max(range.end.abs()) / (range.end - range.start).abs();
    let more = if ratio.is_finite() { ratio.max(1.0).log10() as i32 } else { 0 };
    (DIGITS + more).min(12)
}

/// Formats a value for the label of an axis, with at most `digits` significant digits. Values below 0.001 have one,
/// those from 1e9 two.
fn short(value: f64, digits: i32) -> String {
    let rounded = |value: f64, unit: &str| {
        let most = (digits + 2) as usize;
        let digits = (digits - 1 - value.abs().log10().floor() as i32).max(0) as usize;
        let digits = digits.min(most);
        let text = format!("{value:.digits$}");
        let text = match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.'),
            false => text.as_str(),
        };
        format!("{text}{unit}")
    };
    match value.abs() {
        size if size < 1e-12 => "0".to_owned(),
        size if size < 1e-3 => format!("{value:.0e}"),
        size if size >= 1e9 => format!("{value:.1e}"),
        size if size >= 1e6 => rounded(value / 1e6, "M"),
        size if size >= 1e4 => rounded(value / 1e3, "k"),
        _ => rounded(value, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a line with circles, which tests count.
    fn line(points: &[(f64, f64)]) -> Line {
        Line::new("one", 0, points.iter().map(|&(x, y)| Point::new(x, y)).collect()).with_circles()
    }

    #[test]
    fn unplaceable_points_are_left_out() {
        let points = [(1.0, 5.0), (2.0, 0.0), (3.0, f64::INFINITY), (f64::NAN, 3.0), (4.0, 50.0)];
        let chart = |y| Chart::new(Axis::linear("x"), y, vec![line(&points)]);
        let log = chart(Axis::log("y")).svg(SIZE).unwrap();
        assert_eq!(log.matches("<circle").count(), 2);
        assert!(!log.contains("NaN") && !log.contains("inf"), "{log}");
        assert_eq!(chart(Axis::linear("y")).svg(SIZE).unwrap().matches("<circle").count(), 3);
        let empty = Chart::new(Axis::linear("x"), Axis::log("y"), vec![line(&[(1.0, -1.0)])]);
        assert!(empty.svg(SIZE).is_err());
    }

    #[test]
    fn intervals_and_invalid_points_are_shown() {
        let mut line = line(&[(1.0, 5.0), (2.0, 6.0)]);
        let mut chart = Chart::new(Axis::linear("x"), Axis::log("y"), vec![line.clone()]);
        let plain = chart.svg(SIZE).unwrap();
        (line.points[0].half, line.points[1].valid) = (9.0, false);
        chart.lines = vec![line];
        chart.marks.push((1.5, "here".to_owned()));
        let svg = chart.svg(SIZE).unwrap();
        // An interval has a bar and two caps.
        let coloured = |svg: &str| {
            let is_coloured = |line: &&str| line.contains("<polyline") && line.contains("#0072B2");
            svg.lines().filter(is_coloured).count()
        };
        assert_eq!(coloured(&svg), coloured(&plain) + 3);
        let is_hollow = |line: &&str| line.contains("<circle") && line.contains("fill=\"none\"");
        assert_eq!(svg.lines().filter(is_hollow).count(), 1);
        assert!(svg.contains("here"));
    }

    #[test]
    fn labels_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (1.0, "1"),
            (950.0, "950"),
            (2_500.0, "2500"),
            (250_000.0, "250k"),
            (1.5e6, "1.5M"),
            (1e-5, "1e-5"),
        ] {
            assert_eq!(short(value, DIGITS), text);
        }
    }

    #[test]
    fn labels_of_a_narrow_axis_differ() {
        let range = 100_000.0..100_030.0;
        let ticks = [100_000.0, 100_005.0, 100_010.0];
        let labels = ticks.map(|tick| short(tick, digits_over(&range)));
        assert_eq!(labels, ["100k", "100.005k", "100.01k"]);
        assert_eq!(digits_over(&(0.0..5.0)), DIGITS);
    }
}
