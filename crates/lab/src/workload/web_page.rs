//! A page as the intranets of the 2010s and 2020s have them: one HTML file, style sheets and scripts, many small
//! images and fonts, some of which only the style sheets name.
//!
//! ```text
//!  index.html 30 kB ─┬─ 5 style sheets, 5 scripts of 30 kB ──┬─ 20 images (third level: a browser learns of
//!                    └─ 60 images of 12 kB                   └─  9 fonts   them when a style sheet has come)
//! ```
//! Text compresses as text does; images are bitmaps of random pixels and fonts are random bytes, so both are
//! incompressible and no two seeds share a byte. Bytes that are no font leave the browser with its own.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use vocab::SeededRandom;

/// Bytes of the HTML file, and of each style sheet and script.
const TEXT_BYTES: usize = 30_000;
/// Style sheets, and as many scripts.
const SHEETS: usize = 5;
/// Images that the HTML file names, and those that each style sheet names.
const IMAGES_OF_HTML: usize = 60;
const IMAGES_OF_SHEET: usize = 4;
/// Fonts, spread over the style sheets.
const FONTS: usize = 9;
/// A bitmap of 64 by 62 pixels of three bytes behind a header of 54: 11,958 bytes.
const IMAGE_WIDTH: u32 = 64;
const IMAGE_HEIGHT: u32 = 62;
const FONT_BYTES: usize = 12_000;

/// Words of text: few and short, so that gzip makes about a quarter of it.
const WORDS: usize = 600;

/// The path of the page itself.
pub const PAGE_PATH: &str = "/page/index.html";

/// A page: its objects by their paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebPage {
    objects: BTreeMap<String, Vec<u8>>,
}

impl WebPage {
    /// The page of a seed.
    #[must_use]
    pub fn generate(seed: u64) -> Self {
        let mut builder = PageBuilder::new(seed);
        for number in 0..SHEETS {
            builder.add_sheet(number);
            builder.add_script(number);
        }
        builder.add_html();
        Self {
            objects: builder.objects,
        }
    }

    /// All objects by their paths.
    #[must_use]
    pub fn objects(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.objects
    }

    /// Puts the page below the directory that a server serves.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write_to(&self, directory: &Path) -> Result<()> {
        for (path, content) in &self.objects {
            let file = directory.join(path.trim_start_matches('/'));
            let parent = file.parent().context("every object is in a directory")?;
            fs::create_dir_all(parent)?;
            fs::write(&file, content).with_context(|| format!("writing {}", file.display()))?;
        }
        Ok(())
    }
}

struct PageBuilder {
    random: SeededRandom,
    words: Vec<String>,
    objects: BTreeMap<String, Vec<u8>>,
}

impl PageBuilder {
    fn new(seed: u64) -> Self {
        let mut random = SeededRandom::from_seed(seed);
        let mut word = || -> String {
            let letters = 2 + random.below(8);
            let letter = |_| char::from(b'a' + random.below(26) as u8);
            (0..letters).map(letter).collect()
        };
        let words = (0..WORDS).map(|_| word()).collect();
        Self {
            random,
            words,
            objects: BTreeMap::new(),
        }
    }

    fn add(&mut self, path: &str, content: Vec<u8>) {
        self.objects.insert(path.to_owned(), content);
    }

    /// Text until there are so many bytes.
    fn text(&mut self, bytes: usize) -> String {
        let mut text = String::new();
        while text.len() < bytes {
            // The square of a uniform number leans towards the front of the list, as words do.
            let place = self.random.next_f64() * self.random.next_f64();
            let index = (place * self.words.len() as f64) as usize;
            text.push_str(&self.words[index.min(self.words.len() - 1)]);
            text.push(if text.len() % 80 < 8 { '\n' } else { ' ' });
        }
        text.truncate(bytes);
        text
    }

    /// `begin`, text and `end`, of [`TEXT_BYTES`] in all.
    fn padded(&mut self, begin: &str, end: &str) -> Vec<u8> {
        let text = self.text(TEXT_BYTES - begin.len() - end.len());
        [begin, &text, end].concat().into_bytes()
    }

    fn add_image(&mut self, path: &str) {
        let image = bitmap(&mut self.random);
        self.add(path, image);
    }

    fn add_sheet(&mut self, number: usize) {
        let mut rules = String::new();
        for image in 0..IMAGES_OF_SHEET {
            let image = number * IMAGES_OF_SHEET + image;
            let path = format!("/page/background-{image}.bmp");
            let _ = writeln!(
                rules,
                "#b{image} {{ width: 64px; height: 62px; background: url({path}); }}"
            );
            self.add_image(&path);
        }
        for font in (0..FONTS).filter(|font| font % SHEETS == number) {
            let path = format!("/page/font-{font}.woff2");
            let _ = writeln!(
                rules,
                "@font-face {{ font-family: f{font}; src: url({path}); }}\n#f{font} {{ font-family: f{font}; }}"
            );
            let mut content = vec![0; FONT_BYTES];
            self.random.fill(&mut content);
            self.add(&path, content);
        }
        let content = self.padded(&format!("{rules}/* "), " */\n");
        self.add(&format!("/page/style-{number}.css"), content);
    }

    fn add_script(&mut self, number: usize) {
        let begin = format!("document.documentElement.dataset.script{number} = 'ran';\n/* ");
        let content = self.padded(&begin, " */\n");
        self.add(&format!("/page/script-{number}.js"), content);
    }

    fn add_html(&mut self) {
        // An icon in the page itself keeps browsers from asking for one.
        let mut head = "<!DOCTYPE html>\n<html><head><meta charset=\"utf-8\"><title>Page</title>\n\
             <link rel=\"icon\" href=\"data:,\">\n"
            .to_owned();
        for number in 0..SHEETS {
            let _ = writeln!(
                head,
                "<link rel=\"stylesheet\" href=\"/page/style-{number}.css\">\n\
                 <script src=\"/page/script-{number}.js\"></script>"
            );
        }
        head.push_str("</head><body>\n");
        for image in 0..IMAGES_OF_HTML {
            let path = format!("/page/image-{image}.bmp");
            let _ = writeln!(head, "<img src=\"{path}\" width=\"64\" height=\"62\">");
            self.add_image(&path);
        }
        for image in 0..SHEETS * IMAGES_OF_SHEET {
            let _ = writeln!(head, "<div id=\"b{image}\"></div>");
        }
        for font in 0..FONTS {
            let _ = writeln!(head, "<span id=\"f{font}\">text in a font</span>");
        }
        head.push_str("<p>");
        let content = self.padded(&head, "</p></body></html>\n");
        self.add(PAGE_PATH, content);
    }
}

/// A Windows bitmap of random pixels: file header and information header, then rows from the bottom.
fn bitmap(random: &mut SeededRandom) -> Vec<u8> {
    const HEADER: u32 = 54;
    let pixels = IMAGE_WIDTH * IMAGE_HEIGHT * 3;
    let mut image = b"BM".to_vec();
    for word in [HEADER + pixels, 0, HEADER, 40, IMAGE_WIDTH, IMAGE_HEIGHT] {
        image.extend(word.to_le_bytes());
    }
    // One plane, 24 bits a pixel.
    image.extend([1, 0, 24, 0]);
    for word in [0, pixels, 2_835, 2_835, 0, 0] {
        image.extend(word.to_le_bytes());
    }
    let begin = image.len();
    image.resize(begin + pixels as usize, 0);
    random.fill(&mut image[begin..]);
    image
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_has_hundred_objects_of_stated_sizes() {
        let page = WebPage::generate(1);
        let count = |ending: &str, bytes: usize| {
            let objects = page.objects().iter();
            let fits = |(path, content): &(&String, &Vec<u8>)| {
                path.ends_with(ending) && content.len() == bytes
            };
            objects.filter(fits).count()
        };
        assert_eq!(page.objects().len(), 100);
        assert_eq!(count("/index.html", 30_000), 1);
        assert_eq!(count(".css", 30_000) + count(".js", 30_000), 10);
        assert_eq!(count(".bmp", 11_958) + count(".woff2", 12_000), 89);
    }

    #[test]
    fn only_style_sheets_name_the_third_level() {
        let page = WebPage::generate(2);
        let text = |path: &str| String::from_utf8(page.objects()[path].clone()).unwrap();
        let html = text(PAGE_PATH);
        let sheets: String = (0..SHEETS)
            .map(|number| text(&format!("/page/style-{number}.css")))
            .collect();
        let named = |text: &str, path: &str| text.contains(path);
        let (mut by_html, mut by_sheets) = (0, 0);
        for path in page.objects().keys().filter(|path| *path != PAGE_PATH) {
            assert!(named(&html, path) != named(&sheets, path), "{path}");
            by_html += usize::from(named(&html, path));
            by_sheets += usize::from(named(&sheets, path));
        }
        assert_eq!((by_html, by_sheets), (70, 29));
    }

    #[test]
    fn text_compresses_and_images_do_not() {
        let page = WebPage::generate(3);
        for (path, content) in page.objects() {
            let mut compressed = vec![0; zstd_safe::compress_bound(content.len())];
            let length = zstd_safe::compress(&mut compressed[..], content, 3).unwrap();
            let ratio = content.len() as f64 / length as f64;
            let expected = match path.ends_with(".bmp") || path.ends_with(".woff2") {
                true => 0.99..1.02,
                false => 2.5..6.0,
            };
            assert!(expected.contains(&ratio), "{path}: {ratio}");
        }
    }
}
