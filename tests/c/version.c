/* The smallest program that uses the library. */
#include <stdio.h>

#include <wedjat.h>

int main(void)
{
    return puts(wedjat_version()) < 0 || wedjat_free(NULL) != WEDJAT_ERROR_NULL;
}
